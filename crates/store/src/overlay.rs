//! A device that shows the content of another device, and keeps all changes in memory.
//!
//! `fsck` takes the same steps as a mount, but must not change the store. These steps include
//! writes: an unclosed database is repaired, and the log is replayed. So `fsck` puts an [`Overlay`]
//! above each device.
//!
//! A block that was written to the overlay is read from memory, any other block from the device
//! below. That device is never written, so its file may be open for reading only.
//!
//! # Invariants
//! - V.1: if an overlay is truncated and extended again, the new bytes are zeros. The bytes of the
//!   device below do not come back.
//! - V.2: an overlay reads only two kinds of bytes from the device below. They are those that its
//!   caller reads, and the rest of a block that its caller writes in part.
//!
//! # Limits
//! Each written block of 4096 bytes stays in memory. The replay of a log of 16 MiB may take some
//! hundred MiB, if each of its records changes another page of the database.
//!
//! Source: Linux `Documentation/filesystems/overlayfs.rst`, and the snapshot target of the device
//! mapper.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use corewalk_base::Mutex;

use crate::device::Device;

const BLOCK_BYTES: u64 = 4096;

/// A device that keeps all changes of the device `below` in memory. Without `below`, it is empty at
/// first.
#[derive(Debug)]
pub(crate) struct Overlay {
    below: Option<Arc<dyn Device>>,
    /// Protected by its own mutex.
    written: Mutex<Written>,
}

#[derive(Debug, Default)]
struct Written {
    len: u64,
    /// Number of bytes of the device below that may be shown. A truncation lowers it for ever,
    /// because truncated bytes must not come back (invariant V.1).
    shown: u64,
    blocks: HashMap<u64, Vec<u8>>,
}

impl Overlay {
    pub(crate) fn new(below: Option<Arc<dyn Device>>) -> io::Result<Overlay> {
        let len = below.as_ref().map_or(Ok(0), |below| below.len())?;
        let written = Mutex::new(Written { len, shown: len, ..Written::default() });
        Ok(Overlay { below, written })
    }

    /// Reads from the overlay or from the device below. The range must be within one block.
    fn read_piece(&self, written: &Written, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if let Some(block) = written.blocks.get(&(offset / BLOCK_BYTES)) {
            let at = (offset % BLOCK_BYTES) as usize;
            out.copy_from_slice(&block[at..at + out.len()]);
            return Ok(());
        }
        let shown = written.shown.saturating_sub(offset).min(out.len() as u64) as usize;
        let (shown, zeros) = out.split_at_mut(shown);
        zeros.fill(0);
        match &self.below {
            Some(below) if !shown.is_empty() => below.read_at(offset, shown),
            _ => Ok(()),
        }
    }
}

fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize)> {
    let end = offset + len as u64;
    let first = (offset < end).then_some(offset);
    let next = |at: u64| at - at % BLOCK_BYTES + BLOCK_BYTES;
    let starts = std::iter::successors(first, move |&at| Some(next(at)).filter(|&at| at < end));
    starts.map(move |at| (at, (next(at).min(end) - at) as usize))
}

impl Device for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.written.lock().len)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let written = self.written.lock();
        let end = offset.checked_add(buf.len() as u64).filter(|&end| end <= written.len);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let is_written = |(at, _): (u64, usize)| written.blocks.contains_key(&(at / BLOCK_BYTES));
        if end <= written.shown
            && let Some(below) = &self.below
            && !pieces(offset, buf.len()).any(is_written)
        {
            return below.read_at(offset, buf);
        }
        let mut rest = buf;
        for (at, len) in pieces(offset, rest.len()) {
            let (piece, behind) = rest.split_at_mut(len);
            self.read_piece(&written, at, piece)?;
            rest = behind;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        offset.checked_add(bytes.len() as u64).ok_or(io::ErrorKind::InvalidInput)?;
        let mut written = self.written.lock();
        let mut rest = bytes;
        for (at, len) in pieces(offset, bytes.len()) {
            let (piece, behind) = rest.split_at(len);
            let (number, within) = (at / BLOCK_BYTES, (at % BLOCK_BYTES) as usize);
            let mut block = vec![0; BLOCK_BYTES as usize];
            if len < block.len() {
                self.read_piece(&written, number * BLOCK_BYTES, &mut block)?;
            }
            block[within..within + len].copy_from_slice(piece);
            written.blocks.insert(number, block);
            written.len = written.len.max(at + len as u64);
            rest = behind;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut written = self.written.lock();
        written.shown = written.shown.min(len);
        written.blocks.retain(|&number, _| number * BLOCK_BYTES < len);
        if let Some(block) = written.blocks.get_mut(&(len / BLOCK_BYTES)) {
            block[(len % BLOCK_BYTES) as usize..].fill(0);
        }
        written.len = len;
        Ok(())
    }

    fn reserve(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use corewalk_testkit::rng::{Rng, Seed};

    use super::*;

    #[test]
    fn bytes_behind_what_can_be_counted_are_an_error() {
        let overlay = Overlay::new(None).unwrap();
        overlay.write_at(0, &[1; 9]).unwrap();
        for offset in [u64::MAX, u64::MAX - 1] {
            assert!(overlay.read_at(offset, &mut [0; 2]).is_err());
            assert!(overlay.write_at(offset, &[0; 2]).is_err());
        }
        assert_eq!(overlay.len().unwrap(), 9);
    }

    #[test]
    fn overlay_is_as_a_copy_and_what_is_below_stays() {
        for seed in 0..20 {
            let mut rng = Rng::new(Seed(seed));
            let some = |rng: &mut Rng, max: usize| -> Vec<u8> {
                (0..rng.index(max)).map(|_| rng.next_u64() as u8).collect()
            };
            let first = some(&mut rng, 40_000);
            let below = Arc::new(Overlay::new(None).unwrap());
            below.write_at(0, &first).unwrap();
            let overlay = Overlay::new(Some(below.clone())).unwrap();
            let mut model = first.clone();
            for _ in 0..200 {
                let offset = rng.index(50_000);
                if rng.chance(1, 5) {
                    model.resize(offset, 0);
                    overlay.set_len(offset as u64).unwrap();
                } else {
                    let bytes = some(&mut rng, 9_000);
                    if !bytes.is_empty() {
                        model.resize(model.len().max(offset + bytes.len()), 0);
                        model[offset..offset + bytes.len()].copy_from_slice(&bytes);
                    }
                    overlay.write_at(offset as u64, &bytes).unwrap();
                }
                assert_eq!(overlay.len().unwrap(), model.len() as u64, "seed {seed}");
                let from = rng.index(model.len() + 1);
                let mut read = vec![1; rng.index(model.len() - from + 1)];
                overlay.read_at(from as u64, &mut read).unwrap();
                assert!(read == model[from..from + read.len()], "seed {seed}");
                let behind = &mut [0; 2];
                let end = (model.len() as u64).saturating_sub(1);
                assert!(overlay.read_at(end, behind).is_err(), "seed {seed}");
            }
            let mut after = vec![0; first.len()];
            below.read_at(0, &mut after).unwrap();
            assert!(after == first && below.len().unwrap() == first.len() as u64, "seed {seed}");
        }
    }
}
