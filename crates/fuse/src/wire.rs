//! The messages of the FUSE protocol, version 7.45.
//!
//! A request has three parts: a header of 40 bytes, the fixed arguments of its operation, and the
//! rest, which contains names and data ([`Message`]). A FUSE device delivers all three in one
//! buffer, and io_uring delivers each in a buffer of its own. [`Args`] reads the arguments. It
//! checks every length, so a malformed message gives an error and never a panic.
//!
//! An answer has a header of 16 bytes and a body, which a [`Body`] writes into a buffer.
//!
//! All numbers have the byte order of the machine.
//!
//! Source: Linux `include/uapi/linux/fuse.h`.

mod init;
mod lock;
mod opcode;
mod reply;

use bytes::Bytes;
use corewalk::{Caller, Errno};

pub(crate) use init::{Features, INIT_REPLY_BYTES, Init};
pub(crate) use lock::LockOwner;
pub(crate) use opcode::Opcode;
pub(crate) use reply::{Body, OUT_HEADER_BYTES, out_header};

pub(crate) const IN_HEADER_BYTES: usize = 40;

/// Analogous to `struct fuse_in_header`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) opcode: Opcode,
    pub(crate) unique: u64,
    pub(crate) node: u64,
    pub(crate) caller: Caller,
    /// Length in bytes of the extensions at the end of a request. An example is the security
    /// context of a new file.
    extension_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) header: Header,
    fixed: &'a [u8],
    /// Names and data, without the extensions.
    rest: &'a [u8],
}

#[derive(Clone, Debug)]
pub(crate) struct OwnedMessage {
    header: Header,
    fixed: Box<[u8]>,
    rest: Bytes,
}

#[derive(Clone, Debug)]
pub(crate) struct Args<'a> {
    fixed: &'a [u8],
    rest: &'a [u8],
}

const MALFORMED: Errno = Errno::IO;

impl Header {
    fn parse(bytes: &[u8]) -> Result<Header, Errno> {
        let mut args = Args { fixed: bytes, rest: &[] };
        let _length = args.u32()?;
        let opcode = Opcode(args.u32()?);
        let (unique, node) = (args.u64()?, args.u64()?);
        let caller = Caller { uid: args.u32()?, gid: args.u32()?, pid: args.u32()? };
        let [low, high, ..] = args.u32()?.to_ne_bytes();
        let extension_bytes = usize::from(u16::from_ne_bytes([low, high])) * 8;
        Ok(Header { opcode, unique, node, caller, extension_bytes })
    }
}

impl<'a> Message<'a> {
    /// Parses a message that is in one buffer. The features of the connection decide how long the
    /// fixed arguments are.
    ///
    /// # Errors
    /// If the message is shorter than its operation requires, the error is the number of the
    /// request, which gets `EIO`. If it is shorter than a header, the error is `None`, and the
    /// message cannot be answered.
    pub(crate) fn parse(bytes: &'a [u8], features: Features) -> Result<Message<'a>, Option<u64>> {
        let (header, args) = bytes.split_at_checked(IN_HEADER_BYTES).ok_or(None)?;
        let header = Header::parse(header).map_err(|_| None)?;
        let (fixed, rest) = args
            .split_at_checked(header.opcode.fixed_bytes(features))
            .ok_or(Some(header.unique))?;
        Message::from_parts(header, fixed, rest)
    }

    /// Parses a message whose parts io_uring has delivered separately. `fixed` may be longer than
    /// the fixed arguments.
    ///
    /// # Errors
    /// As those of [`Message::parse`].
    pub(crate) fn parse_parts(
        header: &[u8],
        fixed: &'a [u8],
        rest: &'a [u8],
        features: Features,
    ) -> Result<Message<'a>, Option<u64>> {
        let header = Header::parse(header).map_err(|_| None)?;
        let fixed = fixed.get(..header.opcode.fixed_bytes(features)).ok_or(Some(header.unique))?;
        Message::from_parts(header, fixed, rest)
    }

    fn from_parts(
        header: Header,
        fixed: &'a [u8],
        rest: &'a [u8],
    ) -> Result<Message<'a>, Option<u64>> {
        let kept = rest.len().checked_sub(header.extension_bytes).ok_or(Some(header.unique))?;
        Ok(Message { header, fixed, rest: &rest[..kept] })
    }

    pub(crate) fn args(&self) -> Args<'a> {
        Args { fixed: self.fixed, rest: self.rest }
    }

    pub(crate) fn to_owned(self) -> OwnedMessage {
        OwnedMessage {
            header: self.header,
            fixed: self.fixed.into(),
            rest: Bytes::copy_from_slice(self.rest),
        }
    }
}

impl OwnedMessage {
    pub(crate) fn get(&self) -> Message<'_> {
        Message { header: self.header, fixed: &self.fixed, rest: &self.rest }
    }

    /// Returns `data`, which must be a part of this message, without copying it.
    pub(crate) fn bytes_of(&self, data: &[u8]) -> Bytes {
        self.rest.slice_ref(data)
    }
}

impl<'a> Args<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (taken, left) = self.fixed.split_first_chunk::<N>().ok_or(MALFORMED)?;
        self.fixed = left;
        Ok(*taken)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_ne_bytes)
    }

    /// Reads the next name. In the message, a NUL byte ends each name.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.rest.iter().position(|&byte| byte == 0).ok_or(MALFORMED)?;
        let name = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(name)
    }

    pub(crate) fn data(&mut self, len: u32) -> Result<&'a [u8], Errno> {
        let (data, left) = self.rest.split_at_checked(len as usize).ok_or(MALFORMED)?;
        self.rest = left;
        Ok(data)
    }

    pub(crate) fn forgets(&self, count: u32) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or_default();
        let (pairs, _) = self.rest.as_chunks::<16>();
        pairs.iter().take(count as usize).map(move |pair| (word(&pair[..8]), word(&pair[8..])))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const NONE: Features = Features(0);

    pub(crate) fn message(opcode: Opcode, extensions: u16, args: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let len = (IN_HEADER_BYTES + args.len()) as u32;
        bytes.extend([len, opcode.0].iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend([7_u64, 1].iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend([1000_u32, 1001, 42].iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend([extensions, 0].iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(args);
        bytes
    }

    #[test]
    fn message_is_split_into_header_names_and_data() {
        let mut args = Vec::new();
        args.extend([3_u32, 1].iter().flat_map(|word| word.to_ne_bytes()));
        args.extend(b"user.x\0abc");
        let bytes = message(Opcode::SETXATTR, 0, &args);
        let message = Message::parse(&bytes, NONE).unwrap();
        assert_eq!((message.header.unique, message.header.node), (7, 1));
        assert_eq!(message.header.caller, Caller { uid: 1000, gid: 1001, pid: 42 });
        let mut args = message.args();
        assert_eq!((args.u32(), args.u32(), args.u32()), (Ok(3), Ok(1), Err(MALFORMED)));
        assert_eq!((args.name(), args.data(3)), (Ok(&b"user.x"[..]), Ok(&b"abc"[..])));
        assert_eq!((args.name(), args.data(1)), (Err(MALFORMED), Err(MALFORMED)));
        let padded = [&bytes[40..48], &[9; 120]].concat();
        let parts = Message::parse_parts(&bytes[..40], &padded, b"n\0", NONE)
            .map(|message| (message.args().u32(), message.args().name()));
        assert_eq!(parts, Ok((Ok(3), Ok(&b"n"[..]))));
    }

    /// With `FUSE_SETXATTR_EXT` a setxattr request has two more words before the name. Both
    /// transports must agree where the name begins.
    #[test]
    fn long_setxattr_has_further_flags() {
        let args: Vec<u8> = [3_u32, 0, 1, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let bytes = message(Opcode::SETXATTR, 0, &[&args, &b"n\0abc"[..]].concat());
        let with = Features(Features::SETXATTR_EXT);
        let whole = Message::parse(&bytes, with).unwrap();
        let padded = [&args[..], &[9; 112]].concat();
        assert_eq!(Message::parse_parts(&bytes[..40], &padded, b"n\0abc", with), Ok(whole));
        let mut read = whole.args();
        assert_eq!([read.u32(), read.u32(), read.u32(), read.u32()], [Ok(3), Ok(0), Ok(1), Ok(0)]);
        assert_eq!(
            (read.u32(), read.name(), read.data(3)),
            (Err(MALFORMED), Ok(&b"n"[..]), Ok(&b"abc"[..]))
        );
        let short = IN_HEADER_BYTES + 15;
        assert_eq!(Message::parse(&bytes[..short], with), Err(Some(7)));
        assert!(Message::parse(&bytes[..short], NONE).is_ok());
    }

    #[test]
    fn extensions_are_no_part_of_the_data() {
        let bytes = message(Opcode::LOOKUP, 1, b"name\0EXTENDED");
        assert_eq!(Message::parse(&bytes, NONE).unwrap().args().rest, b"name\0");
        let too_long = message(Opcode::LOOKUP, 2, b"name\0");
        assert_eq!(Message::parse(&too_long, NONE), Err(Some(7)));
    }

    #[test]
    fn truncated_messages_are_refused() {
        let bytes = message(Opcode::CREATE, 0, &[0; 16]);
        for len in 0..bytes.len() {
            let expected = if len < IN_HEADER_BYTES { None } else { Some(7) };
            assert_eq!(Message::parse(&bytes[..len], NONE), Err(expected));
        }
        assert!(Message::parse(&bytes, NONE).is_ok());
    }

    #[test]
    fn batch_of_forgets_ends_with_the_message() {
        let pairs = [5_u64, 1, 6, 2, 7];
        let rest: Vec<u8> = pairs.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let args = Args { fixed: &[], rest: &rest };
        assert_eq!(args.forgets(u32::MAX).collect::<Vec<_>>(), [(5, 1), (6, 2)]);
        assert_eq!(args.forgets(1).collect::<Vec<_>>(), [(5, 1)]);
    }
}
