use corewalk_base::primitives::thread;

use super::*;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a valid name")
}

fn new() -> InodeTable<u32> {
    let options = VfsOptions { entries_max: 4096, ..VfsOptions::default() };
    InodeTable::new(0, options).expect("a table")
}

#[test]
fn name_entered_twice_is_one_node() {
    let table = new();
    let root = table.root();
    let first = table.entered(&root, name("f"), FileKind::Regular, 1).unwrap();
    let again = table.entered(&root, name("f"), FileKind::Regular, 2).unwrap();
    assert_eq!((first.ino(), *again.data()), (again.ino(), 1));
    assert_eq!(table.child(ROOT_INO, b"f").unwrap().ino(), first.ino());
    assert_eq!(table.child(ROOT_INO, b"g").err(), Some(Errno::NOENT));
    assert_eq!(table.child(first.ino(), b"g").err(), Some(Errno::NOTDIR));
    assert_eq!(table.child(77, b"g").err(), Some(Errno::STALE));
}

#[test]
fn name_of_another_kind_is_a_new_node() {
    let table = new();
    let root = table.root();
    let kinds = [FileKind::Regular, FileKind::Directory, FileKind::Symlink, FileKind::Regular];
    let nodes = kinds.map(|kind| table.entered(&root, name("n"), kind, 1).unwrap());
    assert_eq!(nodes.each_ref().map(TableNode::kind), kinds);
    assert_eq!(nodes[3].path().unwrap(), b"/n");
    assert_eq!(nodes[0].path(), Err(Errno::NOENT));
}

#[test]
fn name_of_another_file_is_a_new_node() {
    let table = new();
    let root = table.root();
    let enter = |kind, id| table.entered_if(&root, name("n"), kind, id, |known| *known == id);
    for kind in [FileKind::Regular, FileKind::Directory] {
        let first = enter(kind, 1).unwrap();
        assert_eq!(enter(kind, 1).unwrap().ino(), first.ino());
        let second = enter(kind, 2).unwrap();
        assert_eq!((first.path(), *first.data()), (Err(Errno::NOENT), 1));
        assert_eq!((second.path().unwrap(), *second.data()), (b"/n".to_vec(), 2));
        table.removed(&root, name("n")).unwrap();
    }
}

#[test]
fn parent_follows_a_rename() {
    let table = new();
    let root = table.root();
    let enter = |at, text, kind| table.entered(at, name(text), kind, 1).unwrap();
    let dir = enter(&root, "d", FileKind::Directory);
    let below = enter(&dir, "e", FileKind::Directory);
    assert_eq!((root.parent_ino(), dir.parent_ino()), (Ok(ROOT_INO), Ok(ROOT_INO)));
    assert_eq!(below.parent_ino(), Ok(dir.ino()));
    table.renamed((&dir, name("e")), (&root, name("e"))).unwrap();
    assert_eq!(below.parent_ino(), Ok(ROOT_INO));
    table.removed(&root, name("e")).unwrap();
    assert_eq!(below.parent_ino(), Err(Errno::NOENT));
    assert_eq!(enter(&root, "f", FileKind::Regular).parent_ino(), Err(Errno::NOTDIR));
}

#[test]
fn renamed_directory_moves_with_its_children() {
    let table = new();
    let root = table.root();
    let dir = table.entered(&root, name("a"), FileKind::Directory, 1).unwrap();
    let file = table.entered(&dir, name("f"), FileKind::Regular, 2).unwrap();
    table.renamed((&root, name("a")), (&root, name("b"))).unwrap();
    assert_eq!(file.path().unwrap(), b"/b/f");
    assert_eq!(table.child(ROOT_INO, b"a").err(), Some(Errno::NOENT));
    assert_eq!(table.renamed((&root, name("b")), (&dir, name("c"))), Err(Errno::INVAL));
    // The table does not have the old name of this rename, so it only drops the target name.
    table.renamed((&root, name("unknown")), (&dir, name("f"))).unwrap();
    assert_eq!(file.path(), Err(Errno::NOENT));
}

/// A rename must replace an outdated target. In the storage, a file was renamed over a name that is
/// still a directory with children in the table.
#[test]
fn rename_over_an_outdated_name_replaces_it() {
    let table = new();
    let root = table.root();
    let file = table.entered(&root, name("f"), FileKind::Regular, 1).unwrap();
    let dir = table.entered(&root, name("d"), FileKind::Directory, 2).unwrap();
    let below = table.entered(&dir, name("x"), FileKind::Regular, 3).unwrap();
    table.renamed((&root, name("f")), (&root, name("d"))).unwrap();
    assert_eq!(file.path().unwrap(), b"/d");
    assert_eq!((dir.path(), below.path()), (Err(Errno::NOENT), Err(Errno::NOENT)));
    assert_eq!(table.entered(&dir, name("y"), FileKind::Regular, 4).err(), Some(Errno::NOENT));
}

#[test]
fn exchange_moves_the_name_that_is_known() {
    let table = new();
    let root = table.root();
    let (a, b) = ((&root, name("a")), (&root, name("b")));
    table.exchanged(a, b).unwrap();
    let file = table.entered(&root, name("a"), FileKind::Regular, 1).unwrap();
    table.exchanged(a, b).unwrap();
    assert_eq!(file.path().unwrap(), b"/b");
    let dir = table.entered(&root, name("a"), FileKind::Directory, 2).unwrap();
    table.exchanged(a, b).unwrap();
    assert_eq!((file.path().unwrap(), dir.path().unwrap()), (b"/a".to_vec(), b"/b".to_vec()));
}

#[test]
fn removed_link_leaves_the_other_name() {
    let table = new();
    let root = table.root();
    let file = table.entered(&root, name("a"), FileKind::Regular, 1).unwrap();
    table.linked(&file, &root, name("b")).unwrap();
    table.removed(&root, name("a")).unwrap();
    table.removed(&root, name("a")).unwrap();
    assert_eq!(file.path().unwrap(), b"/b");
    table.removed(&root, name("b")).unwrap();
    assert_eq!((file.path(), *file.data()), (Err(Errno::NOENT), 1));
    assert_eq!(table.removed(&file, name("b")), Err(Errno::NOTDIR));
    assert_eq!(table.linked(&table.root(), &root, name("b")), Err(Errno::PERM));
}

#[test]
fn data_lives_as_long_as_the_node() {
    let count = Arc::new(());
    let living = || Arc::strong_count(&count) - 1;
    let options = VfsOptions { entries_max: 4096, ..VfsOptions::default() };
    let table = InodeTable::new(Arc::clone(&count), options).unwrap();
    let root = table.root();
    let enter = || table.entered(&root, name("f"), FileKind::Regular, Arc::clone(&count)).unwrap();
    let file = enter();
    drop(enter());
    assert_eq!(living(), 2, "the data of the second entry is not used");
    let ino = file.into_lookups();
    table.removed(&root, name("f")).unwrap();
    assert_eq!((living(), table.get(ino).unwrap().ino()), (2, ino));
    assert!(table.forget(ino, 1) && !table.forget(ino, 1));
    assert_eq!((living(), table.get(ino).err()), (1, Some(Errno::STALE)));
    drop(root);
    drop(table);
    assert_eq!(living(), 0);
}

#[test]
fn unused_entries_are_evicted() {
    let options = VfsOptions::default().with_cache_bytes(1 << 20);
    let table = InodeTable::new(0, options).unwrap();
    let root = table.root();
    let held = table.entered(&root, name("held"), FileKind::Regular, 1).unwrap().into_lookups();
    for i in 0..50_000 {
        let text = format!("name {i}");
        table.entered(&root, name(&text), FileKind::Regular, i).unwrap();
    }
    let stats = table.stats();
    assert!(stats.entries < 25_000 && stats.bytes < 3 << 20, "{stats:?}");
    let data: usize = table.data.len();
    assert_eq!(data as u64, stats.inodes, "N.1");
    assert_eq!(table.path(held).unwrap(), b"/held");
}

#[test]
fn threads_find_their_own_changes() {
    const THREADS: u32 = 4;
    let table = new();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let table = &table;
            scope.spawn(move || {
                let root = table.root();
                for round in 0..2_000_u32 {
                    let (old, new) = (format!("o{thread}"), format!("n{thread}"));
                    let (old, new) = (name(&old), name(&new));
                    let node = table.entered(&root, old, FileKind::Regular, round).unwrap();
                    assert_eq!(*node.data(), round);
                    table.renamed((&root, old), (&root, new)).unwrap();
                    let found = table.child(ROOT_INO, new.as_bytes()).unwrap();
                    assert_eq!(found.ino(), node.ino());
                    let other = format!("n{}", (thread + 1) % THREADS);
                    if let Ok(other) = table.child(ROOT_INO, other.as_bytes()) {
                        assert!(*other.data() < 2_000);
                    }
                    let ino = found.into_lookups();
                    table.removed(&root, new).unwrap();
                    assert!(table.forget(ino, 1));
                    assert_eq!(table.child(ROOT_INO, new.as_bytes()).err(), Some(Errno::NOENT));
                }
            });
        }
    });
    assert_eq!(table.data.len(), 1, "only the root is left");
}

/// Two threads may find at the same time that the storage has replaced a file. Both must get the
/// same new node. If each thread made its own node, the node of the first client would lose its
/// path.
#[test]
fn threads_that_replace_a_node_agree_on_the_new_one() {
    let table = InodeTable::new(0_u64, VfsOptions::default()).unwrap();
    let (root, name) = (table.root(), Name::new(b"f").unwrap());
    for id in 1..2_000 {
        let find = || {
            table
                .entered_if(&root, name, FileKind::Regular, id, |known| *known == id)
                .unwrap()
                .ino()
        };
        let inos =
            thread::scope(|scope| [(); 2].map(|()| scope.spawn(find)).map(|t| t.join().unwrap()));
        assert_eq!(inos[0], inos[1]);
        assert_eq!(table.child(root.ino(), b"f").unwrap().ino(), inos[0]);
    }
}

/// A lookup of a known directory at another name must move it, with everything below it. A
/// directory whose name was invalidated must keep its node.
#[test]
fn moved_directory_keeps_its_node_and_its_files() {
    let table = InodeTable::new(0, VfsOptions::default()).unwrap();
    let root = table.root();
    let dir = table.entered(&root, name("d"), FileKind::Directory, 1).unwrap();
    let file = table.entered(&dir, name("f"), FileKind::Regular, 2).unwrap();
    table.invalidated(&root, name("d")).unwrap();
    table.moved(&dir, &root, name("d")).unwrap();
    assert_eq!(table.child(root.ino(), b"d").unwrap().ino(), dir.ino());
    assert_eq!(file.path().unwrap(), b"/d/f");
    let other = table.entered(&root, name("x"), FileKind::Directory, 3).unwrap();
    let gone = table.entered(&other, name("e"), FileKind::Regular, 4).unwrap();
    table.moved(&dir, &other, name("e")).unwrap();
    assert_eq!(file.path().unwrap(), b"/x/e/f");
    assert_eq!(table.child(root.ino(), b"d").err(), Some(Errno::NOENT));
    assert_eq!(table.child(dir.ino(), b"f").unwrap().ino(), file.ino());
    assert_eq!(gone.path(), Err(Errno::NOENT));
    assert_eq!(table.moved(&other, &dir, name("loop")), Err(Errno::LOOP));
    assert_eq!(file.path().unwrap(), b"/x/e/f");
}

#[test]
fn moved_file_keeps_its_other_names() {
    let table = InodeTable::new(0, VfsOptions::default()).unwrap();
    let root = table.root();
    let file = table.entered(&root, name("f"), FileKind::Regular, 1).unwrap();
    table.moved(&file, &root, name("g")).unwrap();
    table.moved(&file, &root, name("g")).unwrap();
    for each in [&b"f"[..], b"g"] {
        assert_eq!(table.child(root.ino(), each).unwrap().ino(), file.ino());
    }
    table.removed(&root, name("f")).unwrap();
    assert_eq!(file.path().unwrap(), b"/g");
}
