//! Many threads change a store during commits. No thread may hang, and the counts of the store must
//! agree with its records.

use corewalk::{Errno, FileKind, FileSystem, Make, Name, Node, RenameMode, SetAttr, XattrMode};
use corewalk_base::primitives::{Arc, thread};
use corewalk_store::{Store, fsck_devices};
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};

use crate::differential::tree;
use crate::memory::{Disks, quiet};

const THREADS: u64 = 4;
const STEPS: usize = 3_000;

/// Two calls for the same name must not overlap (rule F.1 of `FileSystem`), so each thread has its
/// own names.
fn work(store: &Store, dirs: &[Node<'static>], rng: &mut Rng, thread: u64) {
    for step in 0..STEPS {
        let (dir, other) = (*rng.pick(dirs), *rng.pick(dirs));
        let names = [0, 1].map(|_| format!("{thread}-{}", rng.below(6)));
        let [name, to] = names.each_ref().map(|name| Name::new(name.as_bytes()).unwrap());
        let Ok(attr) = store.lookup(dir, name) else {
            store.make(dir, name, &Make::new(0o644, 0, 0)).unwrap();
            continue;
        };
        let node = Node::detached(attr.ino, FileKind::Regular);
        match rng.below(8) {
            0 => {
                store.remove(dir, name, node).unwrap();
                store.forget(attr.ino, attr.generation);
            }
            1 => {
                let target = store.lookup(other, to);
                store.rename((dir, name), (other, to), RenameMode::Replace).unwrap();
                if let Ok(target) = target {
                    store.forget(target.ino, target.generation);
                }
            }
            2 => {
                let linked = store.link(node, other, to);
                assert!(linked.is_ok() || linked == Err(Errno::EXIST));
            }
            3 => {
                store.write(node, rng.below(30_000), &[thread as u8 + 1; 5_000]).unwrap();
            }
            4 => {
                let size = Some(rng.below(30_000));
                store.setattr(node, &SetAttr::default().with_size(size)).unwrap();
            }
            5 if step % 10 == 0 => store.fsync(node, false).unwrap(),
            // All threads set the same few values, so files often start and stop sharing an
            // attribute block.
            _ => {
                let value = vec![rng.below(3) as u8; 500];
                store.setxattr(node, b"user.a", &value, XattrMode::Set).unwrap();
            }
        }
    }
}

/// One thread finds a block and is about to share it, while another removes the last user of the
/// block. In this case, the block must not be freed. Trap T34.
#[test]
fn threads_and_commits_leave_records_that_agree() {
    for seed in 0..3 {
        let seed = ReportSeed::new(Seed(seed));
        let disks = Disks::new();
        let store = Arc::new(disks.open(&quiet().with_size_bytes(None)));
        let root = Node::detached(1, FileKind::Directory);
        let dirs: Vec<_> = ["a", "b", "c"]
            .map(|name| {
                let name = Name::new(name.as_bytes()).unwrap();
                let made = store.make(root, name, &Make::new(0o040_755, 0, 0)).unwrap();
                Node::detached(made.ino, FileKind::Directory)
            })
            .to_vec();
        let rng = Rng::new(seed.seed());
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let (store, dirs, mut rng) = (store.clone(), dirs.clone(), rng.fork(number));
                thread::spawn(move || work(&store, &dirs, &mut rng, number))
            })
            .collect();
        for _ in 0..100 {
            store.sync().unwrap();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        store.share_xattrs();
        let before = tree(&*store);
        let stats = store.stats();
        drop(store);
        let report = fsck_devices(&disks.devices()).unwrap();
        assert_eq!(report.findings, []);
        let counted = (report.blocks + report.xattr_blocks, report.inodes);
        assert_eq!((stats.blocks, stats.inodes), counted, "budgets are exact");
        assert_eq!(
            (stats.xattr_blocks, stats.xattr_users),
            (report.xattr_blocks, report.xattr_users)
        );
        assert_eq!(tree(&disks.open(&quiet())), before);
    }
}

/// Checks that equal attribute sets share blocks, with at most 1024 users each:
/// - A block that is changed in place must not be found by the search for another block with the
///   new content.
/// - Blocks with 1024 users must not slow down a search.
#[test]
fn equal_sets_share_blocks_of_1024_users() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let root = Node::detached(1, FileKind::Directory);
    let set = |store: &Store, number: u64| {
        let name = format!("f{number}");
        let made = store.make(root, Name::new(name.as_bytes()).unwrap(), &Make::new(0o644, 0, 0));
        let node = Node::detached(made.unwrap().ino, FileKind::Regular);
        store.setxattr(node, b"user.label", &[number as u8 % 2; 3000], XattrMode::Set).unwrap();
        node
    };
    for number in 0..3_000 {
        set(&store, number);
    }
    assert_eq!((store.stats().xattr_blocks, store.stats().xattr_users), (4, 3_000));
    drop(store);
    // After a remount, a block enters the index only when it is read. So read two files with each
    // content.
    let store = disks.open(&quiet());
    for number in 0..2 {
        let node = Node::detached(2 + number, FileKind::Regular);
        store.getxattr(node, b"user.label").unwrap();
        store
            .getxattr(Node::detached(2 + 2_998 + number, FileKind::Regular), b"user.label")
            .unwrap();
        set(&store, 10_000 + number);
    }
    assert_eq!((store.stats().xattr_blocks, store.stats().xattr_users), (4, 3_002));
    // Another inode that sets the same content must find the block that was changed in place.
    let (one, two) = (set(&store, 20_000), set(&store, 20_002));
    let blocks = store.stats().xattr_blocks;
    store.setxattr(one, b"user.label", b"mine", XattrMode::Set).unwrap();
    store.setxattr(one, b"user.label", b"new", XattrMode::Set).unwrap();
    store.setxattr(two, b"user.label", b"new", XattrMode::Set).unwrap();
    store.share_xattrs();
    assert_eq!(store.stats().xattr_blocks, blocks + 1, "they share one");
    drop(store);
    assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
}
