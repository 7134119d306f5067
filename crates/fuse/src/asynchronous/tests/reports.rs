//! Tests of reports about directories that another machine has changed.

use super::server::Entering;
use super::*;

/// The node numbers differ from the numbers of the back end. After a report about a directory, the
/// back end must be asked for the names and the attributes below it.
#[test]
fn report_of_a_directory_covers_what_is_below_it() {
    let rig = Rig::new(Options::exclusive());
    let dir = rig.lookup(b"dir\0").unwrap();
    let lookup = || rig.serve(Opcode::LOOKUP, dir, b"f\0").map(|body| word(&body, 0));
    let node = lookup().unwrap();
    rig.taken_calls();
    assert_eq!(lookup(), Ok(node));
    assert_eq!(rig.taken_calls(), [""; 0], "control: the table answers");
    let mut dropped = Vec::new();
    let report = &mut |number, _| dropped.push(number);
    rig.server.invalidate_name(ROOT, Name::new(b"dir").unwrap(), report).unwrap();
    dropped.sort_unstable();
    assert_eq!(dropped, [dir, node]);
    rig.serve(Opcode::GETATTR, node, &[0; 16]).unwrap();
    assert_eq!(lookup(), Ok(node));
    assert_eq!(rig.taken_calls(), ["getattr 5", "lookup f"]);
}

/// A lookup below a reported directory enters a new inode. The report must either refuse the old
/// answer of the back end, or invalidate the inode. Trap T25.
#[test]
fn trap_t25_report_of_a_directory_reaches_an_inode_that_enters_meanwhile() {
    const ROUNDS: u64 = 2000;
    let rig = Rig::new(Options::exclusive());
    let dir = rig.lookup(b"dir\0").unwrap();
    let (table, name) = (&rig.server.table, Name::new(b"dir").unwrap());
    let forget = |node| {
        assert!(table.forget(node, 1));
        table.cache().prune();
    };
    let lookup = message(Opcode::LOOKUP, dir, 2, 1, b"v\0");
    let first = rig.send(&lookup).recv_timeout(PATIENCE).expect("an answer").unwrap();
    // A report looks at these names after the slot of the first inode, and so takes longer.
    let parent = rig.server.node(dir).unwrap();
    for ino in 1000..1500 {
        let name = format!("n{ino}");
        let name = Name::new(name.as_bytes()).unwrap();
        let attr = Attr::file(ino, 0);
        let node = rig.server.enter(&parent, name, &attr, Entering::Found).unwrap();
        node.table_node().get().into_lookups();
    }
    forget(word(&first, 0));
    for round in 1..=ROUNDS {
        // ORDERING: SeqCst. See `Fake::lookup`.
        rig.fs.asked.store(0, Ordering::SeqCst);
        let answer = rig.send(&lookup);
        // ORDERING: SeqCst. See `Fake::lookup`.
        while rig.fs.asked.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        // ORDERING: SeqCst. See `Fake::lookup`.
        rig.fs.version.store(round, Ordering::SeqCst);
        rig.server.invalidate_name(ROOT, name, &mut |_, _| ()).unwrap();
        let body = answer.recv_timeout(PATIENCE).expect("an answer").unwrap();
        let node = rig.server.node(word(&body, 0)).unwrap();
        let cached = node.cached().map(|attr| attr.size);
        assert!(cached.is_none_or(|size| size == round), "round {round}: {cached:?}");
        drop(node);
        forget(word(&body, 0));
    }
}

/// A directory is reported while it is removed or replaced, and a client still uses it. The next
/// directory of this name must get another node, because the kernel has marked the old one as
/// removed.
#[test]
fn directory_that_is_reported_while_it_is_removed_does_not_come_back() {
    for opcode in [Opcode::RMDIR, Opcode::RENAME2] {
        let rig = Rig::new(Options::exclusive());
        let removed = rig.lookup(b"unnumbered\0").unwrap();
        rig.lookup(b"b\0").unwrap();
        rig.fs.gate.set_closed(true);
        let (args, call) = match opcode {
            Opcode::RMDIR => (b"unnumbered\0".to_vec(), "remove unnumbered"),
            _ => (rename(ROOT, 0, b"b\0unnumbered\0"), "rename b"),
        };
        let answer = rig.send(&message(opcode, ROOT, 42, 1, &args));
        rig.wait_for("it runs", |rig| rig.has_called(call));
        let name = Name::new(b"unnumbered").unwrap();
        rig.server.invalidate_name(ROOT, name, &mut |_, _| ()).unwrap();
        rig.fs.gate.set_closed(false);
        assert_eq!(answer.recv_timeout(PATIENCE).expect("an answer"), Ok(Vec::new()));
        assert_ne!(rig.lookup(b"unnumbered\0"), Ok(removed), "{opcode:?}");
    }
}
