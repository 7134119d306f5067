//! Negotiation of features: the `FUSE_INIT` request, in which the kernel offers features, and the
//! answer, in which the server chooses some of them.
//!
//! # Features that the server does not choose
//! - File locks, unless the back end manages them. Without the feature the kernel manages file
//!   locks itself, as for a local file system.
//! - `FUSE_SPLICE_*`: no transport uses splice(2).
//! - `FUSE_ALLOW_IDMAP`: with it, the kernel sends the user and the group only in requests that
//!   make a file, and -1 in all others. It does so even on a mount whose users are not mapped.
//! - `FUSE_CREATE_SUPP_GROUP`: a request that makes a file would say whether the caller is in the
//!   group of the directory. The server would need that only to clear set-group-ID, which a kernel
//!   with the feature has already done.
//!
//! # The privileges of a changed file
//! A change of a file clears its set-user-ID and set-group-ID bits, and its capabilities.
//! - Without a feature, a kernel that checks permissions clears most of these bits.
//! - With `FUSE_HANDLE_KILLPRIV`, the server clears the bits. It chooses this feature if it checks
//!   permissions itself.
//! - With `FUSE_HANDLE_KILLPRIV_V2`, the server clears the bits, and a flag in most requests says
//!   whether to do so. The kernel then remembers that a file has no privileges. Without the feature
//!   it requests `security.capability` before each write. The server chooses the feature if no
//!   other program changes the files, or if the kernel writes files of the host itself.
//!
//! Source: Linux `fs/fuse/inode.c` (`process_init_reply`).

use corewalk::Errno;

use super::{Args, Body};
use crate::options::{Options, Ownership, Permissions, ReaddirPlus, WriteCache};
use crate::server::Server;

const MAJOR: u32 = 7;
const MINOR: u32 = 45;
/// The minor version of the protocol in Linux 5.4, the oldest kernel that this crate supports.
const MINOR_MIN: u32 = 31;
/// Minimum size in bytes of the payload buffer. It is the length of the longest value of an
/// extended attribute. The kernel demands at least 8192 bytes.
const PAYLOAD_BYTES_MIN: usize = 64 << 10;
pub(crate) const INIT_REPLY_BYTES: usize = 64;

macro_rules! features {
    ($($name:ident = $bit:literal;)*) => {
        $(pub(crate) const $name: u64 = 1 << $bit;)*
    };
}

/// The features of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features(pub(crate) u64);

impl Features {
    features! {
        ASYNC_READ = 0;
        POSIX_LOCKS = 1;
        EXPORT_SUPPORT = 4;
        BIG_WRITES = 5;
        DONT_MASK = 6;
        FLOCK_LOCKS = 10;
        HAS_IOCTL_DIR = 11;
        AUTO_INVAL_DATA = 12;
        DO_READDIRPLUS = 13;
        READDIRPLUS_AUTO = 14;
        ASYNC_DIO = 15;
        WRITEBACK_CACHE = 16;
        NO_OPEN_SUPPORT = 17;
        PARALLEL_DIROPS = 18;
        HANDLE_KILLPRIV = 19;
        POSIX_ACL = 20;
        MAX_PAGES = 22;
        CACHE_SYMLINKS = 23;
        NO_OPENDIR_SUPPORT = 24;
        HANDLE_KILLPRIV_V2 = 28;
        SETXATTR_EXT = 29;
        INIT_EXT = 30;
        CREATE_SUPP_GROUP = 34;
        PASSTHROUGH = 37;
        OVER_IO_URING = 41;
    }

    const COMMON: u64 = Features::ASYNC_READ
        | Features::BIG_WRITES
        | Features::MAX_PAGES
        | Features::INIT_EXT
        | Features::PARALLEL_DIROPS
        | Features::CACHE_SYMLINKS
        | Features::ASYNC_DIO
        | Features::HAS_IOCTL_DIR;

    const LOCKS: u64 = Features::POSIX_LOCKS | Features::FLOCK_LOCKS;

    /// Chooses features from the `offered` ones, for fuser and for the transports of this crate.
    /// `ATOMIC_O_TRUNC` is left out. With it, the server truncates a file before the kernel sees
    /// that a program runs from this file (`ETXTBSY`).
    pub(crate) fn choose(server: &Server, offered: Features) -> Features {
        let options = server.options();
        let mut wanted = Features::COMMON
            | Features::DONT_MASK
            // `EXPORT_SUPPORT` allows the kernel to look up `.` and `..`. It does so to open a file
            // handle of an inode that it has forgotten.
            | Features::EXPORT_SUPPORT;
        wanted |= readdirplus(options);
        if options.write_cache == WriteCache::Back {
            wanted |= Features::WRITEBACK_CACHE;
        }
        wanted |= match options.ownership {
            Ownership::Exclusive => Features::HANDLE_KILLPRIV_V2,
            Ownership::Shared => Features::AUTO_INVAL_DATA,
        };
        if server.passes_through() && offered.0 & Features::PASSTHROUGH != 0 {
            wanted |= Features::HANDLE_KILLPRIV_V2;
        }
        wanted |= match options.permissions {
            Permissions::Kernel => Features::POSIX_ACL,
            Permissions::Server => Features::HANDLE_KILLPRIV,
        };
        let missing = wanted & !offered.0;
        if missing != 0 {
            log::debug!("the kernel does not have the features {missing:#x}");
        }
        Features(wanted & offered.0)
    }

    /// Chooses features for the transports of this crate. Some of these features do not work with
    /// fuser. It has neither locks of the back end nor passthrough, and it cannot read a long
    /// setxattr request.
    pub(crate) fn choose_own(server: &Server, offered: Features) -> Features {
        let options = server.options();
        let locks = if server.has_locks() { Features::LOCKS } else { 0 };
        let passthrough = if server.passes_through() { Features::PASSTHROUGH } else { 0 };
        // With `SETXATTR_EXT` the kernel decides whether set-group-ID stays. It decides by its
        // cached group of the file. So the kernel must check ACLs, and no other program may change
        // the files.
        let judges =
            options.permissions == Permissions::Kernel && options.ownership == Ownership::Exclusive;
        let setxattr = if judges { Features::SETXATTR_EXT } else { 0 };
        let wanted = locks | passthrough | setxattr;
        Features(Features::choose(server, offered).0 | wanted & offered.0)
    }

    /// Chooses features for an asynchronous server. They do not contain `FUSE_DONT_MASK`, so the
    /// kernel applies the umask.
    pub(crate) fn choose_async(options: &Options, has_locks: bool, offered: Features) -> Features {
        let mut wanted = Features::COMMON | Features::NO_OPEN_SUPPORT | readdirplus(options);
        if options.ownership == Ownership::Shared {
            wanted |= Features::AUTO_INVAL_DATA;
        }
        if has_locks {
            wanted |= Features::LOCKS;
        }
        Features(wanted & offered.0)
    }

    pub(crate) fn opens_are_free(server: &Server, offered: Features) -> bool {
        let needed = Features::NO_OPEN_SUPPORT | Features::NO_OPENDIR_SUPPORT;
        server.opens_are_free() && offered.0 & needed == needed
    }
}

/// Analogous to `struct fuse_init_in`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Init {
    major: u32,
    minor: u32,
    max_readahead: u32,
    pub(crate) offered: Features,
}

impl Init {
    /// Parses the arguments of `FUSE_INIT`.
    ///
    /// # Errors
    /// `EIO` for a malformed request. `EPROTO` if the kernel is older than Linux 5.4.
    pub(crate) fn parse(mut args: Args<'_>) -> Result<Init, Errno> {
        let (major, minor) = (args.u32()?, args.u32()?);
        if (major, minor) < (MAJOR, MINOR_MIN) {
            return Err(Errno::PROTO);
        }
        let (max_readahead, low) = (args.u32()?, u64::from(args.u32()?));
        let high = match low & Features::INIT_EXT {
            0 => 0,
            _ => u32::from_ne_bytes(args.data(4)?.try_into().map_err(|_| Errno::IO)?),
        };
        let offered = Features(low | u64::from(high) << 32);
        Ok(Init { major, minor, max_readahead, offered })
    }

    /// The body of the answer to a kernel with a newer major version.
    pub(crate) const VERSION: [u8; 8] = {
        let ([a, b, c, d], [e, f, g, h]) = (MAJOR.to_ne_bytes(), MINOR.to_ne_bytes());
        [a, b, c, d, e, f, g, h]
    };

    pub(crate) fn payload_bytes(&self, options: &Options) -> usize {
        let bytes = self.pages(options) as usize * rustix::param::page_size();
        bytes.max(PAYLOAD_BYTES_MIN)
    }

    fn pages(&self, options: &Options) -> u32 {
        let bytes = options.write_bytes_max.max(self.max_readahead) as usize;
        bytes.div_ceil(rustix::param::page_size()) as u32
    }

    pub(crate) fn is_newer(&self) -> bool {
        self.major > MAJOR
    }

    pub(crate) fn reply(
        &self,
        options: &Options,
        chosen: Features,
        body: &mut Body<'_>,
    ) -> Result<(), Errno> {
        let background = u32::from(options.background_max.max(1));
        let congested = background * 3 / 4;
        body.u32(MAJOR)?;
        body.u32(self.minor.min(MINOR))?;
        body.u32(self.max_readahead)?;
        body.u32(chosen.0 as u32)?;
        body.u32(pair(background, congested))?;
        body.u32(options.write_bytes_max)?;
        // The unit of times, in nanoseconds.
        body.u32(1)?;
        body.u32(pair(self.pages(options), 0))?;
        body.u32((chosen.0 >> 32) as u32)?;
        // The maximum stack depth of file systems. With 1, the kernel does not pass through files
        // of a stacked file system such as overlayfs.
        body.u32(u32::from(chosen.0 & Features::PASSTHROUGH != 0))?;
        body.bytes(&[0; INIT_REPLY_BYTES - 40])
    }
}

fn readdirplus(options: &Options) -> u64 {
    match options.readdirplus {
        ReaddirPlus::Never => 0,
        // With an entry timeout of 0 the kernel looks up each name again anyway, and does not use
        // the attributes of a listing.
        ReaddirPlus::Auto if options.entry_timeout.is_zero() => 0,
        ReaddirPlus::Auto => Features::DO_READDIRPLUS | Features::READDIRPLUS_AUTO,
        ReaddirPlus::Always => Features::DO_READDIRPLUS,
    }
}

fn pair(first: u32, second: u32) -> u32 {
    let [a, b] = [first, second].map(|number| number.min(u32::from(u16::MAX)) as u16);
    let ([a, b], [c, d]) = (a.to_ne_bytes(), b.to_ne_bytes());
    u32::from_ne_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use corewalk::tmpfs::{Tmpfs, TmpfsOptions};

    use super::super::{Message, Opcode, tests::message};
    use super::*;

    fn init(minor: u32, flags: u64) -> Result<Init, Errno> {
        let mut args = Vec::new();
        for word in [7, minor, 131_072, flags as u32, (flags >> 32) as u32] {
            args.extend(u32::to_ne_bytes(word));
        }
        args.extend([0; 44]);
        let bytes = message(Opcode::INIT, 0, &args);
        Init::parse(Message::parse(&bytes, Features(0)).unwrap().args())
    }

    #[test]
    fn flags_above_32_bits_are_read_only_with_the_extension() {
        let high = Features::OVER_IO_URING;
        assert_eq!(init(45, Features::INIT_EXT | high).unwrap().offered.0 & high, high);
        assert_eq!(init(45, high).unwrap().offered.0 & high, 0);
        assert_eq!(init(30, 0).err(), Some(Errno::PROTO));
    }

    #[test]
    fn answer_has_the_length_and_the_fields_of_the_protocol() {
        let options = Options::shared().with_write_bytes_max(1 << 20).with_background_max(64);
        let mut buffer = [0xff; 128];
        let mut body = Body::new(&mut buffer);
        init(40, 0).unwrap().reply(&options, Features(1 << 41 | 1), &mut body).unwrap();
        assert_eq!(body.len(), INIT_REPLY_BYTES);
        let word = |at: usize| u32::from_ne_bytes(buffer[4 * at..][..4].try_into().unwrap());
        assert_eq!((word(0), word(1), word(2), word(3)), (7, 40, 131_072, 1));
        assert_eq!(buffer[16..20], [64_u16.to_ne_bytes(), 48_u16.to_ne_bytes()].concat());
        assert_eq!((word(5), word(6)), (1 << 20, 1));
        let pages = (1 << 20) / rustix::param::page_size();
        assert_eq!(buffer[28..30], (pages as u16).to_ne_bytes());
        assert_eq!(word(8), 1 << 9);
    }

    #[test]
    fn only_offered_features_are_chosen() {
        let server =
            |options| Server::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), options).unwrap();
        let all = Features(u64::MAX);
        let exclusive = server(Options::exclusive());
        let chosen = Features::choose(&exclusive, all).0;
        assert_eq!(chosen & Features::POSIX_ACL, Features::POSIX_ACL);
        assert_eq!(chosen & Features::AUTO_INVAL_DATA, 0);
        assert_ne!(chosen & Features::HANDLE_KILLPRIV_V2, 0);
        assert_eq!(Features::choose(&exclusive, Features(0)), Features(0));
        let checks = server(Options::shared().with_server_permissions());
        let chosen = Features::choose(&checks, all).0;
        assert_eq!(chosen & (Features::POSIX_ACL | Features::HANDLE_KILLPRIV_V2), 0);
        assert_ne!(chosen & Features::HANDLE_KILLPRIV, 0);
    }
}
