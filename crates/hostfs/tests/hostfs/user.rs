//! Tests of a server that does not run as root. The host then checks the permissions of the
//! server's system calls.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use corewalk::attr::mode::S_IFREG;
use corewalk::{Cred, Errno, Make, May, SetAttr};
use corewalk_base::primitives::thread;
use corewalk_testkit::require::has_root;
use rustix::fs::{Gid, OFlags, Uid};

use crate::fixtures::{TempDir, name, over};

const OTHER_ID: u32 = 65534;

fn as_user(call: impl FnOnce(&Path) + Send) {
    as_user_with(|_| {}, call);
}

fn as_user_with(prepare: impl FnOnce(&Path), call: impl FnOnce(&Path) + Send) {
    let dir = TempDir::new();
    prepare(dir.path());
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        chown(dir.path(), Some(OTHER_ID), Some(OTHER_ID)).unwrap();
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            if is_root {
                use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
                let (uid, gid) = (Uid::from_raw(OTHER_ID), Gid::from_raw(OTHER_ID));
                set_thread_groups(&[]).unwrap();
                set_thread_res_gid(gid, gid, gid).unwrap();
                set_thread_res_uid(uid, uid, uid).unwrap();
            }
            call(dir.path());
        });
    });
}

/// A user may truncate a file of another user, but must not call chmod(2) on it. So the server must
/// let the truncation clear set-user-ID and set-group-ID.
#[test]
fn file_of_another_user_is_truncated_and_loses_set_user_id() {
    if !has_root() {
        return;
    }
    let prepare = |path: &Path| {
        std::fs::write(path.join("f"), "text").unwrap();
        chown(path.join("f"), Some(0), Some(OTHER_ID)).unwrap();
        std::fs::set_permissions(path.join("f"), Permissions::from_mode(0o6775)).unwrap();
    };
    as_user_with(prepare, |path| {
        let vfs = over(path);
        let file = vfs.lookup(&Cred::root(), &vfs.root(), name("f")).unwrap();
        let user = Cred::user(OTHER_ID, OTHER_ID, &[]);
        let set = SetAttr::default().with_size(0);
        let attr = vfs.setattr(&user, &file, &set).unwrap();
        assert_eq!((attr.size, attr.mode & 0o7777), (0, 0o775));
        // Only the owner may set the mode, so the whole call must fail.
        let set = SetAttr::default().with_size(0).with_mode(0o600);
        assert_eq!(vfs.setattr(&Cred::root(), &file, &set), Err(Errno::PERM));
    });
}

/// A truncation through an open descriptor must succeed even if the mode forbids a new open. cp(1)
/// makes such a call when a copied file ends with a hole.
#[test]
fn open_file_is_truncated_without_the_right_to_reopen_it() {
    as_user(|path| {
        let (vfs, cred) = (over(path), Cred::root());
        let flags = OFlags::RDWR.bits();
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let what = Make::new(S_IFREG | 0o400, uid, gid).with_open(flags);
        let (file, _) = vfs.make(&cred, &vfs.root(), name("f"), what).unwrap();
        let reader = vfs.open(&cred, &file, OFlags::RDONLY.bits(), May::READ);
        let writer = vfs.open(&cred, &file, flags, May::empty()).unwrap().handle;
        assert_eq!(vfs.write(&cred, &file, writer, 0, b"text"), Ok(4));
        let truncate = |size| {
            let set = SetAttr::default().with_size(size);
            vfs.setattr(&cred, &file, &set).map(|attr| attr.size)
        };
        assert_eq!(truncate(8192), Ok(8192));
        assert_eq!(std::fs::metadata(path.join("f")).unwrap().len(), 8192);
        vfs.release(&file, writer);
        assert!(reader.is_ok());
        assert_eq!(truncate(0), Err(Errno::ACCESS));
    });
}
