//! Tests of translations into buffers of many sizes. A translation writes at the end of its buffer.
//! So if the path fits, the buffer must end with the path that a translation into a vector returns.
//! Otherwise the result must be an error.
//!
//! Source: Linux `fs/d_path.c`; getcwd(2); trap T11.

use std::sync::Arc;

use corewalk::attr::mode::{S_IFDIR, S_IFREG};
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Cred, Errno, FsStruct, InodeRef, Make, Name, PathFormat, PathKind, PathRef, Removal, Vfs,
    VfsOptions, WalkFlags,
};
use corewalk_testkit::alloc::{Counting, thread_allocations};

#[global_allocator]
static ALLOC: Counting = Counting::new();

/// The number of nested directories in a path: more than a translation can check without a lock.
const DEPTH: usize = 1_500;

fn tmpfs() -> Arc<Tmpfs> {
    Arc::new(Tmpfs::new(TmpfsOptions::default()))
}

fn new() -> Arc<Vfs> {
    Vfs::new(tmpfs(), VfsOptions::default()).unwrap()
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn make<'v>(vfs: &'v Vfs, dir: &InodeRef<'_>, text: &str, mode: u32) -> InodeRef<'v> {
    vfs.make(&Cred::root(), dir, name(text), Make::new(mode | 0o755, 0, 0)).unwrap().0
}

fn place<'v>(vfs: &'v Vfs, from: &PathRef<'v>, path: &str) -> PathRef<'v> {
    let at = FsStruct { root: vfs.root_path(), cwd: from.clone() };
    vfs.walk(&Cred::root(), &at, path.as_bytes(), WalkFlags::FOLLOW).unwrap()
}

type Owned = Result<Vec<u8>, Errno>;
type InBuffer<'a> = Box<dyn Fn(&mut [u8]) -> Owned + 'a>;

fn formats<'a>(
    place: &'a PathRef<'_>,
    root: &'a PathRef<'_>,
) -> Vec<(&'static str, Owned, InBuffer<'a>, Errno)> {
    let owned = |path: &[u8]| path.to_vec();
    let (too_long, range) = (Errno::NAMETOOLONG, Errno::RANGE);
    let format = |name, text: Owned, format: PathFormat<'a>, too_small| {
        let in_buffer = move |buf: &mut [u8]| place.format_in(format, buf).map(owned);
        (name, text, Box::new(in_buffer) as InBuffer<'a>, too_small)
    };
    let raw = place.format_in(PathFormat::DentryPathRaw, &mut [0; 8192]).map(owned);
    vec![
        (
            "path_of",
            Ok(place.path_of(root).0),
            Box::new(move |buf| place.path_of_in(root, buf).map(|found| owned(found.0))),
            too_long,
        ),
        format("d_path", Ok(place.d_path(root)), PathFormat::DPath(root), too_long),
        format("d_absolute_path", place.d_absolute_path(), PathFormat::DAbsolutePath, too_long),
        format("dentry_path", Ok(place.dentry_path()), PathFormat::DentryPath, too_long),
        format("dentry_path_raw", raw, PathFormat::DentryPathRaw, too_long),
        format("getcwd", place.getcwd(root), PathFormat::Getcwd(root), range),
    ]
}

fn check_in_buffers(place: &PathRef<'_>, root: &PathRef<'_>) {
    for (format, owned, in_buffer, too_small) in formats(place, root) {
        let len = owned.as_ref().map_or(600, Vec::len);
        let sizes = (0..=len.min(64)).chain(len.saturating_sub(400)..=len + 400);
        for size in sizes {
            let mut buf = vec![0xaa; size];
            let found = in_buffer(&mut buf);
            match &owned {
                Ok(path) if size >= path.len() => {
                    assert_eq!(found.as_ref(), Ok(path), "{format} in {size}");
                    assert!(
                        buf.ends_with(path),
                        "{format}: the path is not at the end of the buffer"
                    );
                }
                Ok(_) => assert_eq!(found, Err(too_small), "{format} in {size}"),
                // In some formats, a directory or file may have no path. The error is then `error`,
                // or `too_small` if the buffer is also too small, as in the kernel.
                Err(error) => {
                    assert!(found == Err(*error) || (size < 600 && found == Err(too_small)));
                }
            }
        }
    }
}

/// A path that does not fit the buffer is an error. Trap T11 in `traps.md`.
#[test]
fn path_fits_its_buffer_or_is_an_error() {
    let vfs = new();
    let root = vfs.root_path();
    let mut dir = make(&vfs, &root.inode(), "jail", S_IFDIR);
    make(&vfs, &dir, "in", S_IFDIR);
    make(&vfs, &root.inode(), "m", S_IFDIR);
    vfs.mount(tmpfs(), &place(&vfs, &root, "m")).unwrap();
    make(&vfs, &place(&vfs, &root, "m").inode(), "f", S_IFREG);
    make(&vfs, &root.inode(), "gone", S_IFREG);
    let mut paths = vec![String::from("jail"), "m".into(), "m/f".into(), "jail/in".into()];
    let mut path = String::from("jail");
    for len in [1, 7, 8, 9, 23, 24, 25, 39, 40, 41, 55, 56, 57, 73, 255, 3, 200, 41, 1, 1, 1, 1] {
        let text = "n".repeat(len);
        dir = make(&vfs, &dir, &text, S_IFDIR);
        path += &format!("/{text}");
        make(&vfs, &dir, &"f".repeat(len), S_IFREG);
        paths.extend([path.clone(), format!("{path}/{}", "f".repeat(len))]);
    }
    let jail = place(&vfs, &root, "jail");
    check_in_buffers(&root, &root);
    check_in_buffers(&root, &jail);
    check_in_buffers(&jail, &jail);
    for path in &paths {
        check_in_buffers(&place(&vfs, &root, path), &root);
        check_in_buffers(&place(&vfs, &root, path), &jail);
    }
    let gone = place(&vfs, &root, "gone");
    vfs.remove(&Cred::root(), &vfs.root(), name("gone"), Removal::Unlink).unwrap();
    check_in_buffers(&gone, &root);
    assert_eq!(gone.path_of(&root), (b"/gone".to_vec(), PathKind::Unlinked));
    assert_eq!(gone.dentry_path(), b"/gone//deleted");
    assert_eq!(gone.format_in(PathFormat::DentryPathRaw, &mut [0; 64]), Ok(&b"/gone"[..]));
    let inside = place(&vfs, &root, "m/f");
    assert_eq!((&inside.dentry_path()[..], &inside.d_path(&root)[..]), (&b"/f"[..], &b"/m/f"[..]));
    assert_eq!(inside.d_absolute_path().unwrap(), b"/m/f");
    assert_eq!(inside.path_of(&jail), (b"/m/f".to_vec(), PathKind::OutsideRoot));
    assert_eq!(inside.getcwd(&jail).unwrap(), b"(unreachable)/m/f");
}

#[test]
fn is_subdir_sees_through_mounts_and_not_upwards() {
    let vfs = new();
    let root = vfs.root_path();
    for text in ["a", "b"] {
        let dir = make(&vfs, &root.inode(), text, S_IFDIR);
        make(&vfs, &dir, "c", S_IFDIR);
    }
    vfs.mount(tmpfs(), &place(&vfs, &root, "a/c")).unwrap();
    make(&vfs, &place(&vfs, &root, "a/c").inode(), "d", S_IFDIR);
    let [a, b, d] = ["a", "b", "a/c/d"].map(|path| place(&vfs, &root, path));
    for (place, of) in [(&a, &a), (&a, &root), (&d, &a), (&d, &root), (&root, &root)] {
        assert!(place.is_subdir(of), "is_subdir is false for {place:?} in {of:?}");
    }
    for (place, of) in [(&a, &b), (&root, &a), (&a, &d), (&b, &d), (&d, &b)] {
        assert!(!place.is_subdir(of), "is_subdir is true for {place:?} in {of:?}");
    }
}

/// A path of any depth must be translated into a buffer in a bounded number of passes, without
/// allocation and without recursion. The path must equal the one that is returned as a vector. Trap
/// T10 in `traps.md`.
#[test]
fn translation_into_a_buffer_allocates_nothing_at_any_depth() {
    let vfs = new();
    let root = vfs.root_path();
    let (mut dir, mut expected) = (vfs.root(), Vec::new());
    let mut buf = vec![0; DEPTH * 256];
    for depth in 1..=DEPTH {
        let text = "d".repeat(if depth % 100 == 0 { 255 } else { depth % 60 + 1 });
        dir = make(&vfs, &dir, &text, S_IFDIR);
        expected.extend_from_slice(b"/");
        expected.extend_from_slice(text.as_bytes());
        if ![1, 15, 16, 17, 255, 256, 257, 1_023, 1_024, 1_025, DEPTH].contains(&depth) {
            continue;
        }
        let mut at = root.clone();
        for part in expected.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
            at = place(&vfs, &at, std::str::from_utf8(part).unwrap());
        }
        let before = thread_allocations();
        let found = at.path_of_in(&root, &mut buf).map(|(path, kind)| (path == expected, kind));
        let exact = at
            .format_in(PathFormat::DPath(&root), &mut buf[..expected.len()])
            .map(|path| path == expected);
        let short =
            at.format_in(PathFormat::Getcwd(&root), &mut buf[..expected.len() - 1]).map(drop);
        assert_eq!(thread_allocations(), before, "at depth {depth}");
        assert_eq!(found, Ok((true, PathKind::Linked)), "at depth {depth}");
        assert_eq!((exact, short), (Ok(true), Err(Errno::RANGE)), "at depth {depth}");
        assert_eq!(at.d_path(&root), expected);
    }
}
