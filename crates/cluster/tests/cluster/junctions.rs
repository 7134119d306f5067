//! Junctions: the calls that the back end allows and refuses.

use std::path::Path;
use std::time::{Duration, Instant};

use corewalk::{Errno, FileSystem as _, Make, RenameMode, XattrMode};
use corewalk_base::primitives::thread;
use corewalk_cluster::{ClusterFs, JUNCTION};

use crate::fixtures::{ROOT, Site, create, dir, file, mkdir, name, options};

fn set(fs: &ClusterFs, ino: u64, url: &str) -> Result<(), Errno> {
    fs.setxattr(dir(ino), JUNCTION.as_bytes(), url.as_bytes(), XattrMode::Set)
}

#[test]
fn junction_holds_no_names_and_stays_where_it_is() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let (above, plain) = (mkdir(&fs, ROOT, "a").ino, mkdir(&fs, ROOT, "plain").ino);
    let junction = mkdir(&fs, above, "j").ino;
    let made = create(&fs, ROOT, "f").ino;
    assert_eq!(set(&fs, ROOT, "pg://u@h/d"), Err(Errno::BUSY));
    assert_eq!(set(&fs, above, "pg://u@h/d"), Err(Errno::NOTEMPTY));
    let of_file = fs.setxattr(file(made), JUNCTION.as_bytes(), b"pg://u@h/d", XattrMode::Set);
    assert_eq!(of_file, Err(Errno::NOTDIR));
    assert_eq!(set(&fs, junction, "pg://u@h/d"), Ok(()));

    let make = |mode| fs.make(dir(junction), name("x"), &Make::new(mode, 0, 0)).map(drop);
    assert_eq!(make(0o644), Err(Errno::REMOTE));
    assert_eq!(fs.link(file(made), dir(junction), name("x")).map(drop), Err(Errno::REMOTE));
    let at = |parent, text| (dir(parent), name(text));
    let rename = |from, to, mode| fs.rename(from, to, mode);
    let (here, there) = (at(above, "j"), at(ROOT, "plain"));
    assert_eq!(rename(at(ROOT, "f"), at(junction, "f"), RenameMode::Replace), Err(Errno::REMOTE));
    assert_eq!(rename(here, at(ROOT, "k"), RenameMode::Replace), Err(Errno::BUSY));
    assert_eq!(rename(there, here, RenameMode::Replace), Err(Errno::BUSY));
    assert_eq!(rename(there, here, RenameMode::Exchange), Err(Errno::BUSY));
    assert_eq!(fs.remove(dir(above), name("j"), dir(junction)), Err(Errno::BUSY));

    // The directories above a junction may be renamed.
    assert_eq!(rename(at(ROOT, "a"), at(plain, "b"), RenameMode::Replace), Ok(()));
    let found = fs.junctions().unwrap();
    let paths: Vec<&Path> = found.iter().map(|junction| &*junction.path).collect();
    assert_eq!((paths, found[0].ino), (vec![Path::new("plain/b/j")], junction));
    assert_eq!(fs.removexattr(dir(junction), JUNCTION.as_bytes()), Ok(()));
    assert_eq!(fs.junctions(), Ok(vec![]));
    assert_eq!(fs.remove(dir(above), name("j"), dir(junction)), Ok(()));
    drop(fs);
    site.assert_clean();
}

#[test]
fn renewal_tells_of_new_junctions() {
    let Some(site) = Site::new() else { return };
    let short = options().with_lease(Duration::from_secs(1));
    let mounts = [(); 2].map(|()| ClusterFs::open(&site.parsed(), &short).unwrap());
    let made = mkdir(&mounts[0], ROOT, "j").ino;
    let before = mounts[1].junctions_version();
    set(&mounts[0], made, "pg://u@h/d").unwrap();
    let begin = Instant::now();
    while mounts[1].junctions_version() == before {
        assert!(begin.elapsed() < Duration::from_secs(20), "the renewal tells nothing");
        thread::sleep(Duration::from_millis(20));
    }
}
