//! A server that is not root: the host checks what it does.

use std::os::unix::fs::chown;
use std::path::Path;

use corewalk::attr::mode::S_IFREG;
use corewalk::{Cred, Errno, Make, May, SetAttr};
use corewalk_sync::primitives::thread;
use rustix::fs::{Gid, OFlags, Uid};

use crate::fixtures::{TempDir, name, over};

/// The user and group nobody.
const NOBODY: u32 = 65534;

/// Runs `call` with a folder of a user who is not root, on a thread that has that user's rights and
/// takes them with it.
fn as_user(call: impl FnOnce(&Path) + Send) {
    let dir = TempDir::new();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            if is_root {
                use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
                let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
                set_thread_groups(&[]).unwrap();
                set_thread_res_gid(gid, gid, gid).unwrap();
                set_thread_res_uid(uid, uid, uid).unwrap();
            }
            call(dir.path());
        });
    });
}

/// As cp(1) ends a copy of a file with a hole at its end.
#[test]
fn file_that_may_not_be_opened_again_is_truncated_while_it_is_open() {
    as_user(|path| {
        let (vfs, cred) = (over(path), Cred::root());
        let flags = OFlags::RDWR.bits();
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let what = Make { open: Some(flags), ..Make::new(S_IFREG | 0o400, uid, gid) };
        let (file, _) = vfs.make(&cred, &vfs.root(), name("f"), what).unwrap();
        let reader = vfs.open(&cred, &file, OFlags::RDONLY.bits(), May::READ);
        let writer = vfs.open(&cred, &file, flags, May::empty()).unwrap();
        assert_eq!(vfs.write(&cred, &file, writer, 0, b"text"), Ok(4));
        let truncate = |size| {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            vfs.setattr(&cred, &file, &set).map(|attr| attr.size)
        };
        assert_eq!(truncate(8192), Ok(8192));
        assert_eq!(std::fs::metadata(path.join("f")).unwrap().len(), 8192);
        // It has gone with whoever made it; one that reads is no good for it.
        vfs.release(&file, writer);
        assert!(reader.is_ok());
        assert_eq!(truncate(0), Err(Errno::ACCESS));
    });
}
