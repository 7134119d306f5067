//! Tests of `corewalk ipc exec` with programs that change their user, enter other namespaces, or
//! fill the file system, and with damaged namespaces.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use corewalk_testkit::require::{Need, has_program, has_root, skip};

use crate::fixtures::{Folder, PROGRAM, corewalk, run};

const LIBRARY: &str = "libcorewalk_ipc_preload.so";

struct Shared {
    folder: Folder,
}

impl Shared {
    fn new(programs: &[&str]) -> Option<Self> {
        if !has_root() || !programs.iter().all(|program| has_program(program)) {
            return None;
        }
        let folder = Folder::new();
        let built = Path::new(PROGRAM).parent().expect("it is in a folder");
        let places = [built.join("deps").join(LIBRARY), built.join(LIBRARY)];
        let library = places.iter().find(|path| path.is_file()).expect("it is built");
        for (from, name) in [(Path::new(PROGRAM), "corewalk"), (library, LIBRARY)] {
            fs::copy(from, folder.path(name)).expect("a copy");
        }
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&folder.0, open).expect("it is ours");
        Some(Self { folder })
    }

    fn exec(&self, options: &[&str], command: &[&str]) -> Output {
        let mut exec = Command::new(self.folder.path("corewalk"));
        exec.args(["ipc", "exec"]).args(options).arg("--").args(command).env("LC_ALL", "C");
        run(exec)
    }

    fn said(&self, command: &[&str]) -> String {
        let output = self.exec(&[], command);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && error.is_empty(), "{command:?}: {error}");
        String::from_utf8(output.stdout).expect("it says text")
    }
}

fn rows(shown: &str) -> Vec<String> {
    let rows = shown.lines().filter(|line| line.starts_with("0x"));
    rows.map(|row| row.split_whitespace().skip(2).take(2).collect::<Vec<_>>().join(" ")).collect()
}

/// A program must reach the namespace after su(1) or setpriv(1) has changed its user. Trap X4 in
/// `traps.md`.
#[test]
fn program_that_changes_its_user_stays_in_the_namespace() {
    let Some(shared) = Shared::new(&["ipcmk", "setpriv", "su"]) else { return };
    let script = "ipcmk -Q > /dev/null; ipcs -q";
    let setpriv = ["setpriv", "--reuid", "65534", "--clear-groups", "sh", "-c", script];
    let none = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"];
    let dropped = [&["setpriv"][..], &none, &setpriv[1..]].concat();
    let su = ["su", "-s", "/bin/sh", "nobody", "-c", script];
    for command in [&setpriv[..], &dropped, &su] {
        assert_eq!(rows(&shared.said(command)), ["nobody 644"], "{command:?}");
    }
    // User 65534 may not remove root's semaphore set with mode 600.
    let script = "ipcmk -S 1 -p 600 > /dev/null; setpriv --reuid 65534 --clear-groups ipcrm -s 0";
    let output = shared.exec(&[], &["sh", "-c", script]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("ermission denied"), "{output:?}");
}

/// The new user may not enter the outer folder of segments. With the inherited descriptor, the
/// program must make and attach segments all the same.
#[test]
fn program_that_changes_its_user_makes_and_attaches_segments() {
    let Some(shared) = Shared::new(&["perl", "setpriv"]) else { return };
    let make = r#"shmwrite(shmget(7, 5000, 01644) // die($!), "A" x 10, 4990, 10) or die $!"#;
    let read = r#"
        my $id = shmget(7, 0, 0) // die $!;
        shmread($id, my $text, 4990, 10) or die $!;
        print "$text\n";
        shmwrite($id, "B", 0, 1) or print "write: $!\n";
        shmctl($id, 0, 0) or print "remove: $!\n";
    "#;
    let path = shared.folder.path("namespace");
    let named = ["--shm", "--namespace", path.to_str().expect("a path of ours")];
    let both = "setpriv --reuid 65534 --clear-groups perl -e \"$1\" && \
                setpriv --reuid 65533 --clear-groups perl -e \"$2\"";
    for options in [&["--shm"][..], &named] {
        let output = shared.exec(options, &["sh", "-c", both, "sh", make, read]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        // User 65533 may read the segment of user 65534, but may neither write to it nor remove it.
        let wanted = "AAAAAAAAAA\nwrite: Permission denied\nremove: Operation not permitted\n";
        assert_eq!((said.as_str(), error.as_str()), (wanted, ""), "{options:?}");
    }
    let purged = run({
        let mut purge = Command::new(shared.folder.path("corewalk"));
        purge.args(["ipc", "rm", "--purge", "--namespace"]).arg(&path);
        purge
    });
    assert!(purged.status.success() && !path.with_extension("shm").exists(), "{purged:?}");
}

#[test]
fn program_in_a_user_namespace_stays_in_the_namespace() {
    let Some(shared) = Shared::new(&["ipcmk", "unshare"]) else { return };
    let works = Command::new("unshare").args(["-Ur", "true"]).status();
    if !works.expect("it is installed").success() {
        skip(Need::Kernel, "no user namespaces here");
        return;
    }
    let made = shared.said(&["unshare", "-Ur", "sh", "-c", "ipcmk -S 2 > /dev/null; ipcs -s"]);
    assert_eq!(rows(&made), ["root 644"]);
}

/// A pid from another pid namespace would stand for another process in the IPC namespace. So IPC
/// calls must fail, and the program must continue.
#[test]
fn program_in_a_pid_namespace_is_told_so_and_goes_on() {
    let Some(shared) = Shared::new(&["ipcmk", "unshare"]) else { return };
    let script = "ipcmk -S 2; echo it goes on";
    let output = shared.exec(&[], &["unshare", "--pid", "--fork", "sh", "-c", script]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.starts_with("unshare: ") {
        skip(Need::Kernel, said);
        return;
    }
    assert_eq!(String::from_utf8_lossy(&output.stdout), "it goes on\n");
    assert!(said.contains("the IPC namespace belongs to another pid namespace"), "{said}");
    assert!(said.contains("Function not implemented"), "{said}");
}

/// A parent such as a Python interpreter closes all descriptors before it starts a program. The
/// program must reach the namespace all the same.
#[test]
fn program_whose_parent_closes_descriptors_stays_in_the_namespace() {
    let Some(shared) = Shared::new(&["ipcmk", "python3", "setpriv"]) else { return };
    let script = "import os, subprocess; os.closerange(3, 4096); subprocess.run(['setpriv', \
                  '--reuid', '65534', '--clear-groups', 'ipcmk', '-Q'], check=True)";
    assert_eq!(shared.said(&["python3", "-c", script]), "Message queue id: 0\n");
}

/// `exec` must refuse a file of another user, even if every user may write to it.
#[test]
fn file_of_another_user_is_refused_at_the_start() {
    let Some(shared) = Shared::new(&["setpriv"]) else { return };
    let path = shared.folder.path("namespace");
    let path = path.to_str().expect("a path of ours");
    assert!(shared.exec(&["--namespace", path], &["true"]).status.success());
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).expect("it is ours");
    let mut other = Command::new("setpriv");
    other.args(["--reuid", "65534", "--clear-groups"]).arg(shared.folder.path("corewalk"));
    other.args(["ipc", "exec", "--namespace", path, "--", "true"]);
    shared.folder.assert_refused(other, 1, "belongs to another user");
}

/// In a container, `/dev/shm` may be small and soon full. Calls must then fail, but the program
/// must not be killed.
#[test]
fn full_file_system_is_an_error() {
    let Some(shared) = Shared::new(&["ipcmk", "unshare", "mount"]) else { return };
    let corewalk = shared.folder.path("corewalk");
    let script = r#"
        mount -t tmpfs -o size=64m none /dev/shm
        "$1" ipc exec --namespace full -- sh -c '
            head -c 100M /dev/zero > /dev/shm/rest 2> /dev/null
            for n in 1 2 3 4; do
                for call in "-S 32000" -Q; do ipcmk $call || echo "status $?"; done
            done
            echo it goes on' > said 2>&1 ||
            echo "failed: $?"
        cat said
        "$1" ipc ls | cut -d ' ' -f 1
        "$1" ipc ls --namespace full -q | grep -c 0x
        "$1" ipc rm --namespace full -a
        "$1" ipc ls --namespace full --json
        "$1" ipc rm --namespace full --purge
        ls /dev/shm
    "#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--", "sh", "-ec", script, "sh"]).arg(&corewalk);
    command.current_dir(&shared.folder.0).env("LC_ALL", "C");
    let output = run(command);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if error.starts_with("unshare: ") || error.starts_with("mount: ") {
        skip(Need::Kernel, error);
        return;
    }
    assert!(output.status.success(), "{said}{error}");
    for part in [
        "create semaphore failed: Cannot allocate memory",
        "it goes on",
        "namespace\nfull\n",
        "{\"msg\":[],\"shm\":[],\"sem\":[]}\nrest\n",
    ] {
        assert!(said.contains(part), "{part} in {said}{error}");
    }
    assert!(!said.contains("failed: 1"), "{said}");
    // If a signal had killed ipcmk(1), its status would be above 128.
    let statuses: Vec<&str> =
        said.lines().filter_map(|line| line.strip_prefix("status ")).collect();
    assert!(!statuses.is_empty() && statuses.iter().all(|status| *status == "1"), "{said}");
}

/// No process can join a damaged namespace, but it must be listed until `rm --purge` removes it.
#[test]
fn damaged_namespace_is_listed_and_purged() {
    let folder = Folder::new();
    let user = rustix::process::geteuid().as_raw();
    let name = format!("damaged-{}", std::process::id());
    let named = PathBuf::from(format!("/dev/shm/corewalk-ipc-{user}-{name}"));
    let path = folder.path("namespace");
    // From byte 64 on, a namespace's header has words of 8 bytes. The fifth is the boot id, and the
    // ninth is the capacity.
    let damages: [fn(&File); 4] = [
        |file| file.write_all_at(&[7; 8], 64 + 4 * 8).expect("it is open"),
        |file| file.write_all_at(&[7; 8], 64 + 8 * 8).expect("it is open"),
        |file| file.set_len(4096).expect("it is open"),
        |file| file.set_len(10).expect("it is open"),
    ];
    for (at, damage) in damages.iter().enumerate() {
        for (word, path) in [(&name[..], &named), (path.to_str().expect("ours"), &path)] {
            let exec = ["ipc", "exec", "--shm", "--namespace", word, "--", "true"];
            assert!(run(corewalk(&exec)).status.success());
            damage(&File::options().write(true).open(path).expect("it is there"));
            let joined = run(corewalk(&["ipc", "ls", "--namespace", word, "-q"]));
            assert_eq!(joined.status.code(), Some(1), "damage {at}");
            let listed = run(corewalk(&["ipc", "ls"]));
            let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
            assert_eq!(listed.contains(&name), word == name, "{listed}");
            let purged = run(corewalk(&["ipc", "rm", "--namespace", word, "--purge"]));
            if word != name && at == 3 {
                // `rm --purge PATH` must refuse a file that is no namespace, because PATH may be
                // any file of the user.
                assert_eq!(purged.status.code(), Some(1));
                fs::remove_file(path).expect("it is ours");
                fs::remove_dir_all(path.with_extension("shm")).expect("it is ours");
                continue;
            }
            assert!(purged.status.success(), "{at}: {}", String::from_utf8_lossy(&purged.stderr));
            assert!(!path.exists() && !path.with_extension("shm").exists(), "damage {at}");
        }
    }
}
