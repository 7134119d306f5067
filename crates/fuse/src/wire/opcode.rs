//! The operations of the protocol, and the length of their fixed arguments.

use super::Features;

/// Analogous to `enum fuse_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opcode(pub(crate) u32);

/// Length in bytes of the fixed arguments of setxattr on a connection with the feature
/// `FUSE_SETXATTR_EXT`.
const SETXATTR_EXT_BYTES: usize = 16;

macro_rules! opcodes {
    ($($name:ident = $number:literal, $bytes:literal;)*) => {
        impl Opcode {
            $(pub(crate) const $name: Opcode = Opcode($number);)*

            /// Returns the length of the fixed arguments in bytes. It is 0 for an operation that
            /// this crate does not know.
            pub(crate) fn fixed_bytes(self, features: Features) -> usize {
                if self == Opcode::SETXATTR && features.0 & Features::SETXATTR_EXT != 0 {
                    return SETXATTR_EXT_BYTES;
                }
                match self.0 {
                    $($number => $bytes,)*
                    _ => 0,
                }
            }
        }
    };
}

opcodes! {
    LOOKUP = 1, 0;
    FORGET = 2, 8;
    GETATTR = 3, 16;
    SETATTR = 4, 88;
    READLINK = 5, 0;
    SYMLINK = 6, 0;
    MKNOD = 8, 16;
    MKDIR = 9, 8;
    UNLINK = 10, 0;
    RMDIR = 11, 0;
    RENAME = 12, 8;
    LINK = 13, 8;
    OPEN = 14, 8;
    READ = 15, 40;
    WRITE = 16, 40;
    STATFS = 17, 0;
    RELEASE = 18, 24;
    FSYNC = 20, 16;
    SETXATTR = 21, 8;
    GETXATTR = 22, 8;
    LISTXATTR = 23, 8;
    REMOVEXATTR = 24, 0;
    FLUSH = 25, 24;
    INIT = 26, 16;
    OPENDIR = 27, 8;
    READDIR = 28, 40;
    RELEASEDIR = 29, 24;
    FSYNCDIR = 30, 16;
    GETLK = 31, 48;
    SETLK = 32, 48;
    SETLKW = 33, 48;
    ACCESS = 34, 8;
    CREATE = 35, 16;
    INTERRUPT = 36, 8;
    DESTROY = 38, 0;
    IOCTL = 39, 32;
    POLL = 40, 24;
    NOTIFY_REPLY = 41, 40;
    BATCH_FORGET = 42, 8;
    FALLOCATE = 43, 32;
    READDIRPLUS = 44, 40;
    RENAME2 = 45, 16;
    LSEEK = 46, 24;
    COPY_FILE_RANGE = 47, 56;
    TMPFILE = 51, 16;
    STATX = 52, 24;
    COPY_FILE_RANGE_64 = 53, 56;
}
