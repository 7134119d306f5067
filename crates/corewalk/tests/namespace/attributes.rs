//! Concurrent changes of attributes, and permission checks during them.
//!
//! Each test stops one thread inside the back end, between its checks and its change. Then another
//! thread runs as far as possible, and the result is checked.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use corewalk::acl::{Acl, Entry, Tag, XATTR_ACCESS};
use corewalk::attr::mode::S_IFREG;
use corewalk::{Cred, Errno, InodeRef, Make, May, Removal, SetAttr, Vfs, XattrMode};
use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicBool, AtomicU64, Ordering};
use corewalk_testkit::race::{Watchdog, until_asleep};

use crate::backends::{Call, HookedTmpfs};
use crate::fixtures::{name, new, over, remove, tree, walk};
use crate::pauses::{Stop, stopping};

fn user() -> Cred {
    Cred::user(1000, 1000, &[])
}

fn chmod(vfs: &Vfs, file: &InodeRef<'_>, mode: u32) -> Result<(), Errno> {
    let set = SetAttr::default().with_mode(mode);
    vfs.setattr(&Cred::root(), file, &set).map(drop)
}

fn mode_of(vfs: &Vfs, file: &InodeRef<'_>) -> u32 {
    vfs.getattr(file).unwrap().mode & 0o7777
}

fn acl(owner: u8) -> Vec<u8> {
    let acl = Acl::new([
        Entry::new(Tag::UserObj, owner, Entry::NO_ID),
        Entry::new(Tag::User, 4, 3),
        Entry::new(Tag::GroupObj, 0, Entry::NO_ID),
        Entry::new(Tag::Mask, 4, Entry::NO_ID),
        Entry::new(Tag::Other, 0, Entry::NO_ID),
    ]);
    acl.unwrap().to_xattr()
}

fn set_acl(vfs: &Vfs, file: &InodeRef<'_>, value: &[u8]) -> Result<(), Errno> {
    vfs.setxattr(&Cred::root(), file, XATTR_ACCESS, value, XattrMode::Set)
}

fn overlap<R>(
    stop: &Stop,
    second_name: &str,
    first: impl FnOnce() + Send,
    second: impl FnOnce() + Send,
    look: impl FnOnce() -> R,
) -> R {
    thread::scope(|scope| {
        let first = scope.spawn(first);
        stop.arrived.recv().expect("the first thread reaches the back end");
        let builder = thread::Builder::new().name(second_name.to_owned());
        let second = builder.spawn_scoped(scope, second).expect("the system gives a thread");
        until_asleep(second_name, &second);
        let seen = look();
        stop.go_on.send(Ok(())).expect("the back end waits");
        first.join().unwrap();
        second.join().unwrap();
        seen
    })
}

#[test]
fn chmod_during_a_write_that_clears_set_user_id_is_not_lost() {
    let _watchdog = Watchdog::start("a chmod beside a write", Duration::from_secs(60));
    let (vfs, stop) = stopping(|call| matches!(call, Call::Setattr(_)));
    // Create the file with set-user-ID, so that the first `setattr` of the back end is the one that
    // clears it.
    let what = Make::new(S_IFREG | 0o4755, 0, 0);
    let (f, _) = vfs.make(&Cred::root(), &vfs.root(), name("f"), what).unwrap();
    let write = || assert_eq!(vfs.write(&user(), &f, 0, 0, b"x"), Ok(1));
    overlap(&stop, "chmod-1", write, || chmod(&vfs, &f, 0o4711).unwrap(), || ());
    assert_eq!(mode_of(&vfs, &f), 0o4711, "the chmod was lost");
}

#[test]
fn write_never_changes_a_file_with_set_user_id() {
    let _watchdog = Watchdog::start("a write beside a chmod", Duration::from_secs(60));
    let (vfs, stop) = stopping(|call| matches!(call, Call::Write(_)));
    tree(&vfs, &["f"]);
    let f = walk(&vfs, "f").unwrap();
    let write = || assert_eq!(vfs.write(&user(), &f, 0, 0, b"x"), Ok(1));
    let set = || chmod(&vfs, &f, 0o4755).unwrap();
    let meanwhile = overlap(&stop, "chmod-2", write, set, || mode_of(&vfs, &f));
    assert_eq!(meanwhile & 0o4000, 0, "the mode changed before the bytes were written");
    assert_eq!(mode_of(&vfs, &f), 0o4755, "the chmod was lost");
}

/// An append must write at the offset `end` that its caller passes, if only the namespace changes
/// the files of the back end.
#[test]
fn append_writes_at_the_end_that_the_caller_gives() {
    let vfs = new();
    let what = Make::new(S_IFREG | 0o4755, 0, 0);
    let (f, _) = vfs.make(&Cred::root(), &vfs.root(), name("f"), what).unwrap();
    assert_eq!(vfs.append(&Cred::root(), &f, 0, 0, b"123"), Ok(3));
    assert_eq!(vfs.append_with_lazy_cred(&f, 0, 3, b"45", Cred::root), Ok(2));
    assert_eq!(mode_of(&vfs, &f), 0o4755, "a caller with CAP_FSETID lost the bit");
    assert_eq!(vfs.append_with_lazy_cred(&f, 0, 5, b"6", user), Ok(1));
    assert_eq!(mode_of(&vfs, &f), 0o755);
    chmod(&vfs, &f, 0o4755).unwrap();
    assert_eq!(vfs.append(&user(), &f, 0, 6, b"7"), Ok(1));
    assert_eq!(mode_of(&vfs, &f), 0o755);
    let mut read = [0; 8];
    assert_eq!(vfs.read(&f, 0, 0, &mut read), Ok(7));
    assert_eq!(&read[..7], b"1234567");
    assert_eq!(vfs.append(&user(), &vfs.root(), 0, 0, b"x"), Err(Errno::ISDIR));
}

#[test]
fn truncation_clears_set_user_id_without_fsetid() {
    let (vfs, root) = (new(), Cred::root());
    let what = Make::new(S_IFREG | 0o4755, 0, 0);
    let (f, _) = vfs.make(&root, &vfs.root(), name("f"), what).unwrap();
    let truncate = |cred: &Cred, size, keeps| {
        let attr = vfs.truncate_with_lazy_cred(cred, &f, 0, size, || {
            if keeps { Cred::root() } else { user() }
        })?;
        Ok((attr.size, attr.mode & 0o7777))
    };
    assert_eq!(truncate(&root, 7, true), Ok((7, 0o4755)));
    assert_eq!(truncate(&user(), 0, false), Err(Errno::ACCESS));
    assert_eq!(mode_of(&vfs, &f), 0o4755, "a refused truncation changed the mode");
    assert_eq!(truncate(&root, 5, false), Ok((5, 0o755)));
    let nothing_to_keep =
        || -> Cred { panic!("the caller is looked up for a file without set-user-ID") };
    assert_eq!(
        vfs.truncate_with_lazy_cred(&root, &f, 0, 0, nothing_to_keep).map(|attr| attr.size),
        Ok(0)
    );
    assert_eq!(
        vfs.truncate_with_lazy_cred(&root, &vfs.root(), 0, 0, Cred::root),
        Err(Errno::ISDIR)
    );
}

/// A chmod during a write must not be lost, even if the server looks up the writer's credentials
/// only during the write. After that lookup, the mode cannot change until the bytes are written.
#[test]
fn chmod_during_a_write_with_lazy_credentials_is_not_lost() {
    let _watchdog = Watchdog::start("a chmod beside a late look", Duration::from_secs(60));
    for keeps in [false, true] {
        let vfs = new();
        let what = Make::new(S_IFREG | 0o4755, 0, 0);
        let (f, _) = vfs.make(&Cred::root(), &vfs.root(), name("f"), what).unwrap();
        thread::scope(|scope| {
            let mut setter = None;
            let who = || {
                let builder = thread::Builder::new().name("chmod-4".to_owned());
                let chmod = || chmod(&vfs, &f, 0o4711).unwrap();
                let thread = builder.spawn_scoped(scope, chmod).unwrap();
                until_asleep("chmod-4", &thread);
                assert!(!thread.is_finished(), "the mode changed before the bytes were written");
                setter = Some(thread);
                if keeps { Cred::root() } else { user() }
            };
            assert_eq!(vfs.write_with_lazy_cred(&f, 0, 0, b"x", who), Ok(1));
            setter.expect("the caller's credentials are looked up").join().unwrap();
        });
        assert_eq!(mode_of(&vfs, &f), 0o4711, "the chmod was lost");
        chmod(&vfs, &f, 0o600).unwrap();
        assert_eq!(
            vfs.write_with_lazy_cred(&f, 0, 0, b"x", || panic!(
                "the caller is looked up for a file without set-user-ID"
            )),
            Ok(1)
        );
    }
}

#[test]
fn chmod_during_setfacl_is_not_lost() {
    let _watchdog = Watchdog::start("a chmod beside setfacl", Duration::from_secs(60));
    let (vfs, stop) = stopping(|call| matches!(call, Call::SetAcl(_)));
    tree(&vfs, &["f"]);
    let f = walk(&vfs, "f").unwrap();
    let set = || set_acl(&vfs, &f, &acl(6)).unwrap();
    overlap(&stop, "chmod-3", set, || chmod(&vfs, &f, 0o4750).unwrap(), || ());
    assert_eq!(mode_of(&vfs, &f), 0o4750, "the chmod was lost");
}

#[test]
fn change_after_a_panic_of_the_back_end_succeeds() {
    let _watchdog = Watchdog::start("a change after a panic", Duration::from_secs(60));
    let is_first = Mutex::new(true);
    let vfs = over(HookedTmpfs::new(move |_, call| {
        let is_setattr = matches!(call, Call::Setattr(_));
        let is_now = is_setattr && std::mem::take(&mut *is_first.lock().unwrap());
        if is_now { Err(Errno::IO) } else { Ok(()) }
    }));
    tree(&vfs, &["f"]);
    let f = walk(&vfs, "f").unwrap();
    assert_eq!(chmod(&vfs, &f, 0o600), Err(Errno::IO));
    let vfs = over(HookedTmpfs::new(|_, call| {
        assert!(!matches!(call, Call::Write(_)), "on purpose");
        Ok(())
    }));
    tree(&vfs, &["f"]);
    let f = walk(&vfs, "f").unwrap();
    let write = AssertUnwindSafe(|| vfs.write(&user(), &f, 0, 0, b"x"));
    assert!(catch_unwind(write).is_err());
    chmod(&vfs, &f, 0o600).unwrap();
    assert_eq!(mode_of(&vfs, &f), 0o600);
}

/// A second panic during unwinding must not abort the process. A back end with a poisoned lock
/// panics in each call, also in the `forget` of a reference that is dropped during unwinding. Trap
/// X3 in `traps.md`.
#[test]
fn panic_of_forget_during_unwinding_is_contained() {
    let is_poisoned = Arc::new(AtomicBool::new(false));
    let forgotten = Arc::new(AtomicU64::new(0));
    let (poison, count) = (Arc::clone(&is_poisoned), Arc::clone(&forgotten));
    let vfs = over(HookedTmpfs::new(move |_, call| {
        if matches!(call, Call::Forget(_)) {
            // ORDERING: Relaxed. Statistic.
            count.fetch_add(1, Ordering::Relaxed);
        }
        // ORDERING: Relaxed. A flag of one thread.
        assert!(!poison.load(Ordering::Relaxed), "poisoned");
        Ok(())
    }));
    tree(&vfs, &["f"]);
    let file = walk(&vfs, "f").unwrap();
    remove(&vfs, "f", Removal::Unlink).unwrap();
    // ORDERING: Relaxed. A flag of one thread.
    is_poisoned.store(true, Ordering::Relaxed);
    let call = AssertUnwindSafe(|| {
        let last = file;
        vfs.getattr(&last)
    });
    assert!(catch_unwind(call).is_err());
    // ORDERING: Relaxed. Statistic.
    assert_eq!(forgotten.load(Ordering::Relaxed), 1, "the last reference was not dropped");
}

fn shut_to_its_owner(vfs: &Vfs) -> InodeRef<'_> {
    tree(vfs, &["f"]);
    let f = walk(vfs, "f").unwrap();
    let set = SetAttr::default().with_uid(2);
    vfs.setattr(&Cred::root(), &f, &set).unwrap();
    set_acl(vfs, &f, &acl(0)).unwrap();
    f
}

/// A permission check must not combine the old owner of a file with the new ACL. User 2 owns a file
/// whose ACL denies the owner. Then root becomes the owner, and after that the ACL allows the owner
/// to read. User 2 may read the file neither before nor after these changes, so a check during them
/// must fail, too.
#[test]
fn check_during_a_change_of_owner_and_acl_mixes_nothing() {
    let _watchdog = Watchdog::start("a check beside a change", Duration::from_secs(60));
    let is_armed = Arc::new(Mutex::new(false));
    let place: Arc<OnceLock<Weak<Vfs>>> = Arc::new(OnceLock::new());
    let (seen, armed) = (Arc::clone(&place), Arc::clone(&is_armed));
    let vfs = over(HookedTmpfs::new(move |_, call| {
        if matches!(call, Call::GetAcl(_)) && std::mem::take(&mut *armed.lock().unwrap()) {
            let vfs = seen.get().and_then(Weak::upgrade).unwrap();
            let f = walk(&vfs, "f").unwrap();
            let set = SetAttr::default().with_uid(0);
            vfs.setattr(&Cred::root(), &f, &set).unwrap();
            set_acl(&vfs, &f, &acl(6)).unwrap();
        }
        Ok(())
    }));
    place.set(Arc::downgrade(&vfs)).unwrap();
    let f = shut_to_its_owner(&vfs);
    let may_read = || vfs.access(&Cred::user(2, 2, &[]), &f, May::READ);
    assert_eq!(may_read(), Err(Errno::ACCESS), "before");
    *is_armed.lock().unwrap() = true;
    assert_eq!(may_read(), Err(Errno::ACCESS), "meanwhile");
    assert!(!*is_armed.lock().unwrap(), "the change was not made");
    assert_eq!(may_read(), Err(Errno::ACCESS), "after");
}

#[test]
fn permission_check_ends_despite_constant_changes() {
    let _watchdog = Watchdog::start("a check under a storm", Duration::from_secs(60));
    let looks = Arc::new(Mutex::new(0));
    let place: Arc<OnceLock<Weak<Vfs>>> = Arc::new(OnceLock::new());
    let (seen, counted) = (Arc::clone(&place), Arc::clone(&looks));
    let vfs = over(HookedTmpfs::new(move |_, call| {
        if let (Call::GetAcl(_), Some(vfs)) = (call, seen.get().and_then(Weak::upgrade)) {
            *counted.lock().unwrap() += 1;
            chmod(&vfs, &walk(&vfs, "other").unwrap(), 0o600)?;
        }
        Ok(())
    }));
    tree(&vfs, &["other"]);
    let f = shut_to_its_owner(&vfs);
    place.set(Arc::downgrade(&vfs)).unwrap();
    assert_eq!(vfs.access(&Cred::user(2, 2, &[]), &f, May::READ), Err(Errno::ACCESS));
    assert_eq!(vfs.access(&Cred::user(3, 3, &[]), &f, May::READ), Ok(()));
    // The back end was asked for the ACL ten times. Each of the two calls of `access` reads it four
    // times without the attribute lock, and once under it.
    assert_eq!(*looks.lock().unwrap(), 10);
}
