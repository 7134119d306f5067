//! Tests of how often common commands call the back end when nothing is cached. The tests make the
//! system calls of each command. They leave out only the call of `ls -l` that reads the ACL of each
//! file.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use corewalk::attr::mode::S_IFDIR;
use corewalk::{FileKind, FileSystem as _, Make, Name, Node, Ttl};
use corewalk_fuse::Options;

use crate::hooked::Hooked;
use crate::site::Site;

const DAY: Duration = Duration::from_secs(86400);

#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<String>>>);

impl Calls {
    fn note(&self, call: &str) {
        self.0.lock().expect("no holder panics").push(call.to_owned());
    }

    /// Returns the number of calls since the last `take`, and how many of them were pages. A page
    /// is a `readdir` call that reported at least one entry.
    fn take(&self) -> (usize, usize) {
        let calls = std::mem::take(&mut *self.0.lock().expect("no holder panics"));
        let is_page = |at: usize| {
            calls[at] == "readdir" && calls.get(at + 1).is_some_and(|next| next == "entry")
        };
        let pages = (0..calls.len()).filter(|&at| is_page(at)).count();
        (calls.iter().filter(|call| *call != "entry").count(), pages)
    }
}

fn site(options: Options, files: usize, change: impl FnOnce(&mut Hooked)) -> Option<(Site, Calls)> {
    let calls = Calls::default();
    let noted = calls.clone();
    let mut fs = Hooked::new(move |call, _| noted.note(call));
    let tmpfs = fs.inner();
    let make = |dir: u64, name: &str, mode| {
        let dir = Node::detached(dir, FileKind::Directory);
        let name = Name::new(name.as_bytes()).expect("the name is valid");
        tmpfs.make(dir, name, &Make::new(mode, 0, 0)).expect("make the file").ino
    };
    let root = tmpfs.root().expect("read the root's attributes").ino;
    let d = make(root, "d", S_IFDIR | 0o755);
    for at in 0..files {
        make(d, &format!("f{at:04}"), 0o644);
    }
    change(&mut fs);
    let site = Site::new(Arc::new(fs), options)?;
    fs::metadata(site.root()).expect("read the root's attributes");
    calls.take();
    Some((site, calls))
}

fn both() -> [Options; 2] {
    [Options::exclusive(), Options::shared()]
}

fn list(site: &Site, stat: bool) -> usize {
    let entries = fs::read_dir(site.path("d")).expect("list the folder");
    let paths: Vec<_> = entries.map(|entry| entry.expect("read the entry").path()).collect();
    for path in paths.iter().filter(|_| stat) {
        fs::symlink_metadata(path).expect("read the attributes");
    }
    paths.len()
}

#[test]
fn cold_stat_at_depth_two_costs_two_calls() {
    for options in both() {
        let ownership = options.ownership;
        let Some((site, calls)) = site(options, 1, |_| ()) else { return };
        fs::metadata(site.path("d/f0000")).expect("read the attributes");
        assert_eq!(calls.take().0, 2, "{ownership:?}");
    }
}

#[test]
fn long_listing_of_fifty_names_costs_two_calls_more() {
    for options in both() {
        let ownership = options.ownership;
        let Some((site, calls)) = site(options, 50, |_| ()) else { return };
        fs::metadata(site.path("d")).expect("read the attributes");
        calls.take();
        assert_eq!(list(&site, true), 50);
        let (calls, _) = calls.take();
        assert!(calls <= 52, "{calls} calls, {ownership:?}");
    }
}

#[test]
fn short_listing_of_a_thousand_names_costs_at_most_205_calls() {
    for options in both() {
        let ownership = options.ownership;
        let Some((site, calls)) = site(options, 1000, |_| ()) else { return };
        fs::metadata(site.path("d")).expect("read the attributes");
        calls.take();
        assert_eq!(list(&site, false), 1000);
        let (calls, _) = calls.take();
        assert!(calls <= 205, "{calls} calls, {ownership:?}");
    }
}

#[test]
fn listing_with_attributes_of_the_back_end_costs_one_call_per_page() {
    for (options, page_entries, stat) in both()
        .into_iter()
        .flat_map(|options| [(options.clone(), 100, true), (options, 5000, false)])
    {
        let ownership = options.ownership;
        let Some((site, calls)) = site(options, 1000, |fs| fs.page_entries = page_entries) else {
            return;
        };
        fs::metadata(site.path("d")).expect("read the attributes");
        calls.take();
        assert_eq!(list(&site, false), 1000);
        let (count, pages) = calls.take();
        assert!(count <= pages + 1, "{count} calls, {pages} pages, {ownership:?}");
        assert!(pages <= 1000_usize.div_ceil(page_entries).max(3), "{pages} pages");
        if stat {
            // The listing has cached the attributes, so a stat only checks that the name still
            // leads to the same file.
            let found = fs::symlink_metadata(site.path("d/f0000")).expect("read the attributes");
            assert_eq!(found.nlink(), 1);
            assert!(calls.take().0 <= 1);
        }
    }
}

/// A timeout in an answer of the back end must replace the timeout of the options. A server that
/// checks permissions must ignore both, because the kernel must then cache nothing.
#[test]
fn time_to_live_of_an_answer_replaces_the_option() {
    let asked =
        Options::shared().with_entry_timeout(Duration::ZERO).with_attr_timeout(Duration::ZERO);
    let checked = Options::shared().with_server_permissions();
    let ttl = |time| Ttl { entry: Some(time), attr: Some(time) };
    for (options, time, is_asked) in
        [(asked, DAY, false), (Options::exclusive(), Duration::ZERO, true), (checked, DAY, true)]
    {
        let Some((site, calls)) = site(options, 1, |fs| fs.ttl = ttl(time)) else { return };
        fs::metadata(site.path("d/f0000")).expect("read the attributes");
        calls.take();
        fs::metadata(site.path("d/f0000")).expect("read the attributes");
        assert_eq!(calls.take().0 > 0, is_asked, "{time:?}");
    }
}
