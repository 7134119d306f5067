//! Checks that the suite accepts all back ends of the repository, and a read-only one.

use std::cell::RefCell;
use std::sync::Arc;

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Attr, ByPath, DirEntry, DirSink, Errno, FileSystem, Name, Node, StatFs};
use corewalk_cluster::{ClusterFs, ClusterOptions, Url, mkfs};
use corewalk_conformance::{Outcome, Report, Suite};
use corewalk_hostfs::{HostFs, HostFsOptions};
use corewalk_store::{Store, StoreOptions};
use corewalk_testkit::postgres::Postgres;
use tempfile::TempDir;

use crate::memory::Memory;

fn all_pass_but(report: &Report, skips: &[&str]) {
    println!("{report}");
    report.assert();
    let skipped = report.outcomes().filter(|(_, outcome)| matches!(outcome, Outcome::Skipped(_)));
    let skipped: Vec<&str> = skipped.map(|(check, _)| check).collect();
    assert_eq!(skipped, skips, "{report}");
}

#[test]
fn tmpfs_passes() {
    let report = Suite::new(|| Arc::new(Tmpfs::new(TmpfsOptions::default()))).run();
    all_pass_but(&report, &[]);
}

#[test]
fn store_passes() {
    let dirs = RefCell::new(Vec::new());
    let new = || -> Arc<dyn FileSystem> {
        dirs.borrow_mut().clear();
        let dir = TempDir::new().unwrap();
        let store = Store::open(dir.path(), &StoreOptions::default()).unwrap();
        dirs.borrow_mut().push(dir);
        Arc::new(store)
    };
    all_pass_but(&Suite::new(new).run(), &[]);
}

#[test]
fn hostfs_passes() {
    let dirs = RefCell::new(Vec::new());
    let new = || -> Arc<dyn FileSystem> {
        dirs.borrow_mut().clear();
        let dir = TempDir::new().unwrap();
        let fs = HostFs::new(dir.path(), HostFsOptions::default()).unwrap();
        dirs.borrow_mut().push(dir);
        Arc::new(fs)
    };
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let report = Suite::new(new).with_owner(uid, gid).run();
    println!("{report}");
    report.assert();
    // These checks must pass on all machines. Other features depend on the machine's file system.
    for check in ["content", "rename_exchange", "hard_links", "unlinked", "storm"] {
        assert_eq!(report.outcome(check), Some(&Outcome::Passed), "{report}");
    }
}

#[test]
fn cluster_passes() {
    let Some(postgres) = Postgres::start() else { return };
    let count = RefCell::new(0);
    let objects = TempDir::new().unwrap();
    let new = || -> Arc<dyn FileSystem> {
        *count.borrow_mut() += 1;
        let address = postgres.new_database(&format!("c{}", count.borrow()));
        let url = format!("pg://{address}?data=file:{}", objects.path().display());
        let url = Url::parse(&url).unwrap();
        mkfs(&url, (0, 0), false).unwrap();
        Arc::new(ClusterFs::open(&url, &ClusterOptions::default()).unwrap())
    };
    all_pass_but(&Suite::new(new).run(), &[]);
}

#[test]
fn back_end_in_memory_by_path_passes() {
    let report = Suite::new(|| Arc::new(ByPath::new(Memory::new()))).run();
    all_pass_but(&report, &["by_number", "fallocate", "hard_links", "xattrs", "direct"]);
}

struct Hello;

const TEXT: &[u8] = b"hello";

impl FileSystem for Hello {
    fn root(&self) -> Result<Attr, Errno> {
        Ok(Attr::dir(1))
    }

    fn lookup(&self, _: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        if name.as_bytes() == TEXT { Ok(Attr::file(2, 5)) } else { Err(Errno::NOENT) }
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        Ok(if node.ino() == 1 { Attr::dir(1) } else { Attr::file(2, 5) })
    }

    fn readdir(&self, _: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        if cookie == 0 {
            let _ = sink(DirEntry::from_attr(Name::new(TEXT)?, Attr::file(2, 5), 1));
        }
        Ok(())
    }

    fn read(&self, _: Node<'_>, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let rest = TEXT.get(at as usize..).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        Ok(StatFs::default())
    }
}

#[test]
fn read_only_back_end_passes_the_checks_that_change_nothing() {
    let report = Suite::new(|| Arc::new(Hello)).run();
    report.assert();
    let passed = report.outcomes().filter(|(_, outcome)| **outcome == Outcome::Passed);
    let passed: Vec<&str> = passed.map(|(check, _)| check).collect();
    let reads = ["root", "statfs", "tree", "read_ranges", "readdir_cookies", "readdir_pages"];
    assert_eq!(passed, reads, "{report}");
}
