//! Machines of a network: network namespaces that are connected by a bridge.

use std::process::{Command, Stdio};

use corewalk_testkit::require::{Need, skip};

pub(crate) const ADDRESS: &str = "198.51.100.254";

#[derive(Debug)]
pub(crate) struct Network {
    id: u32,
    machines: usize,
}

impl Network {
    /// Makes `machines` network namespaces, and connects them by a bridge. If the kernel forbids
    /// that, calls [`skip`] and returns None.
    #[track_caller]
    pub(crate) fn new(machines: usize) -> Option<Network> {
        let network = Network { id: std::process::id(), machines };
        let bridge = network.bridge();
        if !ip(&format!("link add {bridge} type bridge")) {
            skip(Need::Kernel, "no bridge can be made");
            return None;
        }
        run(&format!("address add {ADDRESS}/24 dev {bridge}"));
        run(&format!("link set {bridge} up"));
        for number in 0..machines {
            let (name, link) = (network.name(number), network.link(number));
            run(&format!("netns add {name}"));
            run(&format!("link add {link} type veth peer name eth0 netns {name}"));
            run(&format!("link set {link} master {bridge} up"));
            run(&format!("-n {name} address add 198.51.100.{}/24 dev eth0", number + 1));
            run(&format!("-n {name} link set eth0 up"));
        }
        Some(network)
    }

    fn bridge(&self) -> String {
        format!("cwb{}", self.id)
    }

    pub(crate) fn name(&self, number: usize) -> String {
        format!("cw{}.{number}", self.id)
    }

    fn link(&self, number: usize) -> String {
        format!("cwv{}.{number}", self.id)
    }

    /// Sets the link of a machine up, or cuts it. While a link is cut, the packets of the machine
    /// are lost.
    pub(crate) fn set_link(&self, number: usize, is_up: bool) {
        run(&format!("link set {} {}", self.link(number), if is_up { "up" } else { "down" }));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for number in 0..self.machines {
            ip(&format!("link delete {}", self.link(number)));
            ip(&format!("netns delete {}", self.name(number)));
        }
        ip(&format!("link delete {}", self.bridge()));
    }
}

fn ip(words: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(words.split(' ')).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn run(words: &str) {
    assert!(ip(words), "ip {words}");
}
