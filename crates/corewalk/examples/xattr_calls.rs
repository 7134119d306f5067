//! Runs a fixed script of system calls for extended attributes and prints a transcript, for a
//! comparison of two file systems.
//!
//! ```text
//! xattr_calls DIR
//! ```
//!
//! The script works in DIR, an empty directory that all users can reach. It prints one line per
//! call: the call and its result, errno or bytes. Lists of names are sorted. Values over 40 bytes
//! are shown as length and checksum.
//!
//! The script needs root, and runs some calls as other users.
//!
//! The cases are those of the Linux Test Project. They are setxattr01 to 03, getxattr01 to 03,
//! listxattr01 to 03, removexattr01 and 02, and their variants for links (`l...`) and descriptors
//! (`f...`). The namespaces and permissions of xattr(7), and ACLs, are covered too.
//!
//! Source: the manual pages of these calls; xattr(7); acl(5); LTP `testcases/kernel/syscalls`.

#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, XattrFlags, open};
use rustix::fs::{fgetxattr, flistxattr, fremovexattr, fsetxattr};
use rustix::fs::{getxattr, listxattr, removexattr, setxattr};
use rustix::fs::{lgetxattr, llistxattr, lremovexattr, lsetxattr};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

const SET: XattrFlags = XattrFlags::empty();
const CREATE: XattrFlags = XattrFlags::CREATE;
const REPLACE: XattrFlags = XattrFlags::REPLACE;

/// The user that owns some of the files.
const OWNER: u32 = 1000;
/// A user that owns no file.
const OTHER: u32 = 2000;

fn main() {
    let Some(dir) = std::env::args_os().nth(1) else {
        eprintln!("usage: xattr_calls DIR");
        std::process::exit(2);
    };
    let script = Script { dir: PathBuf::from(dir) };
    script.prepare();
    script.values();
    script.names();
    script.flags();
    script.lists();
    script.descriptors();
    script.links();
    script.special_files();
    script.namespaces();
    script.permissions();
    script.sticky_directories();
    script.acls();
    script.many();
}

struct Script {
    dir: PathBuf,
}

impl Script {
    fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn prepare(&self) {
        rustix::process::umask(Mode::empty());
        for name in ["file", "mine", "secret", "acl", "many"] {
            File::create(self.at(name)).expect("a file");
        }
        for name in ["dir", "sticky", "open-sticky"] {
            std::fs::create_dir(self.at(name)).expect("a directory");
        }
        std::os::unix::fs::symlink("file", self.at("link")).expect("a link");
        std::os::unix::fs::symlink("nothing", self.at("dangling")).expect("a link");
        let device = |name: &str, kind, number| {
            let mode = Mode::from_raw_mode(0o666);
            let number = rustix::fs::makedev(1, number);
            rustix::fs::mknodat(rustix::fs::CWD, self.at(name), kind, mode, number)
                .expect("a node");
        };
        device("fifo", rustix::fs::FileType::Fifo, 0);
        device("char", rustix::fs::FileType::CharacterDevice, 3);
        device("block", rustix::fs::FileType::BlockDevice, 0);
        device("socket", rustix::fs::FileType::Socket, 0);
        assert!(self.at("fifo").metadata().expect("it is there").file_type().is_fifo());
        for (name, mode) in [
            ("file", 0o644),
            ("mine", 0o644),
            ("secret", 0o200),
            ("acl", 0o640),
            ("many", 0o666),
            ("dir", 0o755),
            ("sticky", 0o1777),
            ("open-sticky", 0o1777),
        ] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(self.at(name), permissions).expect("a mode");
        }
        for name in ["mine", "secret", "open-sticky"] {
            std::os::unix::fs::chown(self.at(name), Some(OWNER), Some(OWNER)).expect("an owner");
        }
    }

    /// Tests values of all lengths and buffers that are too small (setxattr01, getxattr01).
    fn values(&self) {
        let file = self.at("file");
        for len in [0, 1, 5, 255, 4000, 4096, 4097, 65535, 65536, 65537] {
            let value = vec![b'a' + (len % 26) as u8; len];
            say(&format!("set user.len {len}"), setxattr(&file, "user.len", &value, SET));
            get(&file, "user.len", 0);
            get(&file, "user.len", 1);
            get(&file, "user.len", len);
            get(&file, "user.len", len.saturating_sub(1));
            get(&file, "user.len", 70_000);
        }
        say("remove user.len", removexattr(&file, "user.len"));
        say("remove it again", removexattr(&file, "user.len"));
        get(&file, "user.len", 100);
        say("set bytes", setxattr(&file, "user.bytes", b"\0\x01\xff\n\0", SET));
        get(&file, "user.bytes", 100);
        say("set shorter", setxattr(&file, "user.bytes", b"x", SET));
        get(&file, "user.bytes", 100);
        say("remove it", removexattr(&file, "user.bytes"));
        let nowhere = self.at("nowhere");
        say("set of nothing", setxattr(&nowhere, "user.a", b"1", SET));
        get(&nowhere, "user.a", 10);
        list(&nowhere, 10);
        say("remove of nothing", removexattr(&nowhere, "user.a"));
        let beneath = file.join("beneath");
        say("set beneath a file", setxattr(beneath, "user.a", b"1", SET));
    }

    /// Tests names that are too long, too short, or of an unknown namespace (setxattr01,
    /// getxattr03, removexattr02).
    fn names(&self) {
        let file = self.at("file");
        let of_length = |len: usize| format!("user.{}", "n".repeat(len - 5));
        let names: [String; 15] = [
            of_length(255),
            of_length(256),
            of_length(300),
            String::new(),
            "user".to_owned(),
            "user.".to_owned(),
            "trusted.".to_owned(),
            "security.".to_owned(),
            "system.".to_owned(),
            "nodots".to_owned(),
            ".dot".to_owned(),
            "unknown.name".to_owned(),
            "system.unknown".to_owned(),
            "userx.name".to_owned(),
            "user.a.b.c".to_owned(),
        ];
        for name in &names {
            let shown =
                if name.len() > 40 { format!("of {} bytes", name.len()) } else { name.clone() };
            println!("-- name '{shown}'");
            say("set", setxattr(&file, name.as_str(), b"value", SET));
            say("set to replace", setxattr(&file, name.as_str(), b"other", REPLACE));
            get(&file, name, 10);
            list(&file, 1000);
            say("remove", removexattr(&file, name.as_str()));
            get(&file, name, 0);
            say("remove again", removexattr(&file, name.as_str()));
        }
        let utf8 = "user.\u{e4}\u{1f600} with spaces";
        say("set of UTF-8", setxattr(&file, utf8, b"1", SET));
        list(&file, 100);
        say("remove of UTF-8", removexattr(&file, utf8));
    }

    /// setxattr01: flags.
    fn flags(&self) {
        let file = self.at("file");
        let flags = |bits| XattrFlags::from_bits_retain(bits);
        for (what, flags) in [
            ("replace", REPLACE),
            ("both", CREATE | REPLACE),
            ("create", CREATE),
            ("create again", CREATE),
            ("replace what is there", REPLACE),
            ("both, it is there", CREATE | REPLACE),
            ("unknown flag 4", flags(4)),
            ("unknown flag 255", flags(255)),
        ] {
            say(what, setxattr(&file, "user.flag", what.as_bytes(), flags));
            get(&file, "user.flag", 100);
        }
        say("too long, to create", setxattr(&file, "user.flag", &[0; 65537], CREATE));
        say("remove", removexattr(&file, "user.flag"));
    }

    /// Lists attributes into buffers of all sizes (listxattr01 to 03).
    fn lists(&self) {
        let dir = self.at("dir");
        list(&dir, 0);
        list(&dir, 100);
        for name in ["user.b", "user.a", "user.cc", "trusted.t", "security.s"] {
            say(&format!("set {name}"), setxattr(&dir, name, name.as_bytes(), SET));
        }
        for size in [0, 1, 6, 41, 42, 43, 44, 100, 65536, 70_000] {
            list(&dir, size);
        }
        become_user(OTHER);
        list(&dir, 0);
        list(&dir, 32);
        list(&dir, 100);
        become_root();
        for name in ["user.b", "user.a", "user.cc", "trusted.t", "security.s"] {
            say(&format!("remove {name}"), removexattr(&dir, name));
            list(&dir, 100);
        }
    }

    /// Makes the calls on descriptors (fsetxattr01, fgetxattr01, flistxattr01, fremovexattr01 and
    /// 02).
    fn descriptors(&self) {
        let mode = Mode::empty();
        for (what, name, flags) in [
            ("read only", "file", OFlags::RDONLY),
            ("write only", "file", OFlags::WRONLY),
            ("directory", "dir", OFlags::RDONLY),
            ("path", "file", OFlags::PATH),
            ("fifo", "fifo", OFlags::RDWR | OFlags::NONBLOCK),
        ] {
            println!("-- descriptor: {what}");
            let fd = open(self.at(name), flags, mode).expect("it is there");
            say("fset", fsetxattr(&fd, "user.fd", b"through", CREATE));
            say("fset again", fsetxattr(&fd, "user.fd", b"again", CREATE));
            say("fset trusted", fsetxattr(&fd, "trusted.fd", b"t", SET));
            let mut value = [0; 20];
            show("fget", fgetxattr(&fd, "user.fd", &mut value[..]), &value);
            show("fget, short", fgetxattr(&fd, "user.fd", &mut value[..2]), &value);
            show("fget, none", fgetxattr(&fd, "user.none", &mut value[..]), &value);
            let mut names = [0; 100];
            show_list("flist", flistxattr(&fd, &mut names[..]), &names);
            show_list("flist, short", flistxattr(&fd, &mut names[..3]), &names);
            say("fremove", fremovexattr(&fd, "user.fd"));
            say("fremove again", fremovexattr(&fd, "user.fd"));
            say("fremove trusted", fremovexattr(&fd, "trusted.fd"));
        }
        println!("-- descriptor: of a file without a name");
        let gone = self.at("gone");
        let fd = File::create(&gone).expect("a file");
        std::fs::remove_file(&gone).expect("it goes");
        say("fset", fsetxattr(&fd, "user.gone", b"still here", SET));
        let mut value = [0; 20];
        show("fget", fgetxattr(&fd, "user.gone", &mut value[..]), &value);
        say("fremove", fremovexattr(&fd, "user.gone"));
    }

    /// Uses extended attributes through two symbolic links, one of which is dangling. Functions
    /// such as lsetxattr use the link itself, the others its target.
    fn links(&self) {
        let (link, dangling) = (self.at("link"), self.at("dangling"));
        say("set through a link", setxattr(&link, "user.through", b"1", SET));
        get(&self.at("file"), "user.through", 10);
        get(&link, "user.through", 10);
        list(&link, 100);
        for path in [&link, &dangling] {
            println!("-- {}", path.file_name().expect("it has one").display());
            for name in ["user.link", "trusted.link", "security.link", "user.through"] {
                say(&format!("lset {name}"), lsetxattr(path, name, b"of the link", SET));
                let mut value = [0; 20];
                show(&format!("lget {name}"), lgetxattr(path, name, &mut value[..]), &value);
            }
            let mut names = [0; 100];
            show_list("llist", llistxattr(path, &mut names[..]), &names);
            show_list("llist, short", llistxattr(path, &mut names[..5]), &names);
            say("lremove user.link", lremovexattr(path, "user.link"));
            say("lremove trusted.link", lremovexattr(path, "trusted.link"));
            say("lremove security.link", lremovexattr(path, "security.link"));
        }
        say("set through a dangling link", setxattr(&dangling, "user.a", b"1", SET));
        get(&dangling, "user.a", 10);
        say("remove through a link", removexattr(&link, "user.through"));
    }

    /// Makes calls for extended attributes on kinds of files that have no user attributes
    /// (setxattr02, getxattr02, removexattr01).
    fn special_files(&self) {
        for kind in ["fifo", "char", "block", "socket"] {
            let path = self.at(kind);
            println!("-- {kind}");
            for name in ["user.a", "trusted.a", "security.a"] {
                say(&format!("set {name}"), setxattr(&path, name, b"value", SET));
                get(&path, name, 10);
            }
            list(&path, 100);
            become_user(OTHER);
            for name in ["user.a", "trusted.a", "security.a"] {
                say(&format!("set {name} as a user"), setxattr(&path, name, b"value", SET));
                get(&path, name, 10);
            }
            become_root();
            for name in ["user.a", "trusted.a", "security.a"] {
                say(&format!("remove {name}"), removexattr(&path, name));
            }
        }
    }

    fn namespaces(&self) {
        let mine = self.at("mine");
        for user in [0, OWNER, OTHER] {
            println!("-- as {user}");
            become_user(user);
            for name in ["user.n", "trusted.n", "security.n", "system.n", "security.capability"] {
                say(&format!("set {name}"), setxattr(&mine, name, b"value", SET));
                get(&mine, name, 10);
                get(&mine, name, 0);
            }
            list(&mine, 100);
            for name in ["user.n", "trusted.n", "security.n"] {
                say(&format!("remove {name}"), removexattr(&mine, name));
            }
            become_root();
            // As root, set one attribute per namespace again, so that the next round can read and
            // remove it.
            for name in ["user.n", "trusted.n", "security.n"] {
                setxattr(&mine, name, b"of root", SET).expect("root may");
            }
        }
    }

    /// Shows that user attributes need the permissions of the file.
    fn permissions(&self) {
        let secret = self.at("secret");
        say("set of a file that none can read", setxattr(&secret, "user.s", b"1", SET));
        for user in [0, OWNER, OTHER] {
            println!("-- as {user}, mode 0200");
            become_user(user);
            say("set", setxattr(&secret, "user.s", b"2", SET));
            get(&secret, "user.s", 10);
            list(&secret, 100);
            say("remove what is not there", removexattr(&secret, "user.none"));
            become_root();
        }
        let readable = std::fs::Permissions::from_mode(0o444);
        std::fs::set_permissions(&secret, readable).expect("a mode");
        for user in [0, OWNER, OTHER] {
            println!("-- as {user}, mode 0444");
            become_user(user);
            say("set", setxattr(&secret, "user.s", b"3", SET));
            say("create", setxattr(&secret, "user.s", b"3", CREATE));
            get(&secret, "user.s", 10);
            say("remove", removexattr(&secret, "user.none"));
            become_root();
        }
    }

    fn sticky_directories(&self) {
        for (dir, owner) in [("sticky", 0), ("open-sticky", OWNER)] {
            for user in [0, OWNER, OTHER] {
                println!("-- {dir} of {owner} as {user}");
                let path = self.at(dir);
                become_user(user);
                say("set user.a", setxattr(&path, "user.a", b"1", SET));
                get(&path, "user.a", 10);
                say("remove user.a", removexattr(&path, "user.a"));
                become_root();
            }
        }
    }

    fn acls(&self) {
        let (file, dir) = (self.at("acl"), self.at("dir"));
        let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
        let named = acl(&[(1, 6), (2, 4), (4, 4), (16, 6), (32, 0)]);
        let minimal = acl(&[(1, 7), (4, 5), (32, 1)]);
        let no_mask = acl(&[(1, 6), (2, 4), (4, 4), (32, 0)]);
        for (what, path, name, value) in [
            ("access", &file, access, &named),
            ("default of a file", &file, default, &named),
            ("access that is a mode", &file, access, &minimal),
            ("access, named again", &file, access, &named),
            ("access without a mask", &file, access, &no_mask),
            ("access, cut off", &file, access, &named[..named.len() - 1].to_vec()),
            ("access, version 1", &file, access, &[1, 0, 0, 0].to_vec()),
            ("default of a directory", &dir, default, &named),
            ("access of a directory", &dir, access, &named),
        ] {
            println!("-- ACL: {what}");
            say("set", setxattr(path, name, value, SET));
            get(path, name, 0);
            get(path, name, 100);
            get(path, name, 5);
            list(path, 100);
            mode(path);
        }
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o604)).expect("a mode");
        get(&file, access, 100);
        File::create(dir.join("child")).expect("a file");
        std::fs::create_dir(dir.join("child-dir")).expect("a directory");
        for child in [dir.join("child"), dir.join("child-dir")] {
            println!("-- ACL: {} inherits", child.file_name().expect("it has one").display());
            get(&child, access, 100);
            get(&child, default, 100);
            list(&child, 100);
            mode(&child);
        }
        become_user(OTHER);
        say("set as another user", setxattr(&file, access, &minimal, SET));
        say("remove as another user", removexattr(&file, access));
        get(&file, access, 100);
        become_root();
        say("create what is there", setxattr(&file, access, &named, CREATE));
        say("set nothing", setxattr(&file, access, b"", SET));
        get(&file, access, 100);
        mode(&file);
        for (path, name) in [(&file, access), (&dir, default), (&dir, access), (&file, default)] {
            say(&format!("remove {name}"), removexattr(path, name));
            list(path, 100);
            mode(path);
        }
        let link = self.at("link");
        say("access of a link", lsetxattr(&link, access, &named, SET));
        let mut value = [0; 100];
        show("get of a link", lgetxattr(&link, access, &mut value[..]), &value);
    }

    fn many(&self) {
        let many = self.at("many");
        become_user(OTHER);
        for round in 0..3_usize {
            for nth in 0..20_usize {
                let value = vec![b'0' + round as u8; (nth * 7 + round * 13) % 60];
                say("set one of many", setxattr(&many, format!("user.nth{nth}"), &value, SET));
            }
            list(&many, 1000);
        }
        for nth in (0..20).step_by(3) {
            say("remove one of many", removexattr(&many, format!("user.nth{nth}")));
        }
        list(&many, 1000);
        (0..20).for_each(|nth| get(&many, &format!("user.nth{nth}"), 100));
        become_root();
    }
}

/// Changes the thread's credentials to the user `id` (0 is root), the group `id`, and no other
/// groups.
fn become_user(id: u32) {
    if id == 0 {
        return become_root();
    }
    set_thread_groups(&[]).expect("root may");
    let (gid, uid) = (Gid::from_raw(id), Uid::from_raw(id));
    set_thread_res_gid(Gid::ROOT, gid, Gid::ROOT).expect("root may");
    set_thread_res_uid(Uid::ROOT, uid, Uid::ROOT).expect("root may");
}

fn become_root() {
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).expect("it was root");
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).expect("it was root");
}

fn say(what: &str, result: Result<(), Errno>) {
    match result {
        Ok(()) => println!("{what}: done"),
        Err(errno) => println!("{what}: {}", name_of(errno)),
    }
}

fn get(path: &Path, name: &str, size: usize) {
    let mut value = vec![0; size];
    let result = getxattr(path, name, value.as_mut_slice());
    let shown =
        if name.len() > 40 { format!("a name of {} bytes", name.len()) } else { name.into() };
    show(&format!("get {shown} into {size}"), result, &value);
}

fn list(path: &Path, size: usize) {
    let mut names = vec![0; size];
    let result = listxattr(path, names.as_mut_slice());
    show_list(&format!("list into {size}"), result, &names);
}

fn mode(path: &Path) {
    let mode = path.metadata().expect("it is there").permissions().mode();
    println!("mode {mode:o}");
}

fn show(what: &str, result: Result<usize, Errno>, buffer: &[u8]) {
    match result {
        Err(errno) => println!("{what}: {}", name_of(errno)),
        Ok(len) if len > buffer.len() => println!("{what}: {len} bytes"),
        Ok(len) => println!("{what}: {}", text_of(&buffer[..len])),
    }
}

fn show_list(what: &str, result: Result<usize, Errno>, buffer: &[u8]) {
    match result {
        Ok(len) if len <= buffer.len() => {
            let mut names: Vec<&[u8]> = buffer[..len].split_inclusive(|&b| b == 0).collect();
            names.sort_unstable();
            println!("{what}: {len} bytes, {}", text_of(&names.concat()));
        }
        other => show(what, other, buffer),
    }
}

fn text_of(bytes: &[u8]) -> String {
    if bytes.len() > 40 && !bytes.contains(&0) {
        let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, &byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        return format!("{} bytes, sum {sum:016x}", bytes.len());
    }
    let mut text = format!("{} bytes '", bytes.len());
    let _ = write!(text, "{}'", bytes.escape_ascii());
    text
}

fn name_of(errno: Errno) -> String {
    let known = [
        (Errno::PERM, "EPERM"),
        (Errno::NOENT, "ENOENT"),
        (Errno::TOOBIG, "E2BIG"),
        (Errno::BADF, "EBADF"),
        (Errno::ACCESS, "EACCES"),
        (Errno::EXIST, "EEXIST"),
        (Errno::NOTDIR, "ENOTDIR"),
        (Errno::INVAL, "EINVAL"),
        (Errno::NOSPC, "ENOSPC"),
        (Errno::RANGE, "ERANGE"),
        (Errno::NODATA, "ENODATA"),
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
    ];
    let name = known.iter().find(|(known, _)| *known == errno).map(|(_, name)| *name);
    name.map_or_else(|| format!("errno {}", errno.raw_os_error()), str::to_owned)
}

/// Encodes an ACL as the value of an extended attribute. Each entry is a pair of a tag and a
/// permission. If the tag is that of a named user, the entry is for user 1234.
fn acl(entries: &[(u16, u16)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for &(tag, permission) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permission.to_le_bytes());
        let id = if tag == 2 { 1234 } else { u32::MAX };
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}
