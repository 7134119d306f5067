//! How many statements the calls of a program need.

use std::ops::ControlFlow;

use corewalk::{Errno, FileSystem as _, Name, RenameMode, SetAttr};
use corewalk_cluster::ClusterFs;

use crate::fixtures::{
    ROOT, Site, counter, create, dir, file, list, mkdir, name, options, read, write_new,
};

fn count<T>(fs: &ClusterFs, work: impl FnOnce() -> T) -> u64 {
    let before = counter(fs, "cluster_statements");
    work();
    counter(fs, "cluster_statements") - before
}

#[test]
fn find_of_a_cold_tree_fills_each_directory_once() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    for number in 0..20 {
        let made = mkdir(&fs, ROOT, &format!("d{number}"));
        for number in 0..50 {
            create(&fs, made.ino, &format!("f{number}"));
        }
    }
    drop(fs);
    let fs = site.open();
    let mut found = 0;
    let used = count(&fs, || {
        for (text, attr) in list(&fs, ROOT) {
            assert_eq!(fs.lookup(dir(ROOT), name(&text)).unwrap().ino, attr.ino);
            assert!(fs.getattr(dir(attr.ino)).unwrap().is_dir());
            for (text, attr) in list(&fs, fs.lookup(dir(ROOT), name(&text)).unwrap().ino) {
                assert!(text.starts_with('f'));
                assert_eq!(fs.getattr(file(attr.ino)).unwrap().mode, 0o100_644);
                found += 1;
            }
        }
    });
    assert_eq!(found, 1000);
    assert!(used <= 21, "{used} statements");
    let warm = count(&fs, || {
        for (text, attr) in list(&fs, ROOT) {
            for (text, _) in list(&fs, attr.ino) {
                fs.lookup(dir(attr.ino), name(&text)).unwrap();
            }
            assert_eq!(fs.lookup(dir(attr.ino), name("absent")), Err(Errno::NOENT));
            fs.lookup(dir(ROOT), name(&text)).unwrap();
            fs.getattr(dir(attr.ino)).unwrap();
            assert_eq!(fs.getxattr(dir(attr.ino), b"security.capability"), Err(Errno::NODATA));
        }
    });
    assert_eq!(warm, 0);
    site.assert_clean();
}

#[test]
fn each_change_is_one_statement() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    list(&fs, ROOT);
    let (mut made, mut parent) = (None, None);
    assert_eq!(count(&fs, || parent = Some(mkdir(&fs, ROOT, "d"))), 1);
    let parent = parent.unwrap().ino;
    let absent = || fs.lookup(dir(parent), name("a")).unwrap_err();
    assert_eq!(count(&fs, || assert_eq!(absent(), Errno::NOENT)), 0);
    assert_eq!(count(&fs, || made = Some(create(&fs, parent, "a"))), 1);
    let ino = made.unwrap().ino;
    assert_eq!(count(&fs, || fs.getattr(dir(parent)).unwrap()), 0);
    assert_eq!(count(&fs, || fs.link(file(ino), dir(ROOT), name("l")).unwrap()), 1);
    let chmod = SetAttr::default().with_mode(0o600);
    assert_eq!(count(&fs, || fs.setattr(file(ino), &chmod).unwrap()), 1);
    let (from, to) = ((dir(parent), name("a")), (dir(ROOT), name("b")));
    assert_eq!(count(&fs, || fs.rename(from, to, RenameMode::Replace).unwrap()), 1);
    assert_eq!(count(&fs, || fs.remove(dir(ROOT), name("l"), file(ino)).unwrap()), 1);
    assert_eq!(count(&fs, || fs.remove(dir(ROOT), name("b"), file(ino)).unwrap()), 1);
    assert_eq!(count(&fs, || fs.remove(dir(ROOT), name("d"), dir(parent)).unwrap()), 1);
    assert_eq!(count(&fs, || assert_eq!(list(&fs, ROOT), [])), 0);
    drop(fs);
    site.assert_clean();
}

#[test]
fn small_file_is_two_statements_and_no_object() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    list(&fs, ROOT);
    let bytes = vec![7; 16 << 10];
    let mut made = None;
    assert_eq!(count(&fs, || made = Some(write_new(&fs, ROOT, "f", &bytes))), 2);
    let made = made.unwrap();
    assert_eq!(fs.getattr(file(made.ino)).unwrap().size, 16 << 10);
    assert_eq!(count(&fs, || assert_eq!(read(&fs, made.ino), bytes)), 1);
    drop(fs);
    let report = corewalk_cluster::fsck(&site.parsed(), &[]).unwrap();
    assert_eq!((report.findings.len(), report.objects, report.unused_objects), (0, 0, 0));
}

#[test]
fn huge_directory_is_listed_in_pages() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let made = mkdir(&fs, ROOT, "d");
    for number in 0..4500 {
        create(&fs, made.ino, &format!("f{number}"));
    }
    drop(fs);
    let fs = site.open();
    let missing = || fs.lookup(dir(made.ino), name("x")).unwrap_err();
    assert_eq!(count(&fs, || assert_eq!(missing(), Errno::NOENT)), 2);
    assert_eq!(count(&fs, || assert_eq!(missing(), Errno::NOENT)), 0);
    assert_eq!(count(&fs, || fs.lookup(dir(made.ino), name("f4400")).unwrap()), 1);
    let mut names: Vec<String> = Vec::new();
    let pages = count(&fs, || names = list(&fs, made.ino).into_iter().map(|it| it.0).collect());
    assert!(pages <= 3, "{pages} statements");
    let expected: Vec<String> = (0..4500).map(|number| format!("f{number}")).collect();
    assert_eq!(names, expected);
    assert_eq!(count(&fs, || assert_eq!(list(&fs, made.ino).len(), 4500)), 0);
}

/// Checks that few statements are needed to list a directory that is larger than the cache. The
/// test asks for the attributes of the files in batches, as find(1) and other programs do.
#[test]
fn walk_of_a_directory_that_exceeds_the_cache_needs_few_statements() {
    const FILES: usize = 20_000;
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let made = mkdir(&fs, ROOT, "d").ino;
    let first = create(&fs, made, "f0").ino;
    drop(fs);
    site.sql(&format!(
        "INSERT INTO node SELECT i, home, mode, uid, gid, nlink, size, rdev, atime, mtime, ctime,
            btime, version, flags FROM node, generate_series({first} + 1, {first} + {FILES} - 1) i
            WHERE ino = {first};
        INSERT INTO edge SELECT {made}, convert_to('f' || i - {first}, 'UTF8'), i, 32768, seq + i
            FROM edge, generate_series({first} + 1, {first} + {FILES} - 1) i WHERE ino = {first};
        SELECT 1"
    ));
    // Of the 20,000 names, 8,000 with their inodes fit into the cache.
    let fs = ClusterFs::open(&site.parsed(), &options().with_cache_bytes(8_000_000)).unwrap();
    let (mut found, mut last) = (0, 0);
    let used = count(&fs, || {
        loop {
            let mut batch = Vec::new();
            while batch.len() < 3000 {
                let before = batch.len();
                fs.readdir(dir(made), last, &mut |entry| {
                    batch.push((entry.name.as_bytes().to_vec(), entry.attr.unwrap().ino));
                    last = entry.cookie;
                    ControlFlow::Continue(())
                })
                .unwrap();
                if batch.len() == before {
                    break;
                }
            }
            if batch.is_empty() {
                break;
            }
            for (text, ino) in batch {
                let name = Name::new(&text).unwrap();
                assert_eq!(fs.lookup(dir(made), name).unwrap().ino, ino);
                assert_eq!(fs.getattr(file(ino)).unwrap().ino, ino);
                found += 1;
            }
        }
    });
    assert_eq!(found, FILES);
    assert!(used <= FILES as u64 / 2000 + 2, "{used} statements");
    assert!(counter(&fs, "cluster_cached_entries") <= 8_000_000 / 500);
}

#[test]
fn connection_that_the_server_has_ended_costs_no_statement() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    create(&fs, ROOT, "before");
    site.sql(
        "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%cw_make%'",
    );
    let used = count(&fs, || create(&fs, ROOT, "after"));
    assert_eq!(used, 1);
}

#[test]
fn functions_that_are_called_often_are_planned_once() {
    let Some(site) = Site::new() else { return };
    let planned_at_each_call = "SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_proc
        WHERE pronamespace = 'corewalk'::regnamespace AND (provolatile = 'v' OR NOT proretset)
        AND prolang = (SELECT oid FROM pg_language WHERE lanname = 'sql')";
    let rare = "cw_close_slot cw_dead_objects cw_forget_objects cw_inos cw_judge cw_junctions \
                cw_new_slot cw_waiting";
    assert_eq!(site.sql(planned_at_each_call), rare);
}
