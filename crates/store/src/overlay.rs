//! A device whose changes stay in memory.
//!
//! A check of a store has to do what a mount does, and that writes: a database that was not closed is repaired
//! when it is opened, and what the log has is put into database and data. So a check does all of it above
//! an [`Overlay`] of each device, which reads what is below as long as nothing was written there, and takes all
//! else with it when it goes. What is below is never written, so the files may be open for reading only.
//!
//! # Invariants
//! - V.1: bytes below show up to the least length that there ever was: what was cut off is zeros if it comes back.
//! - V.2: what is read below is what was asked for, and no byte more, or the rest of a block that is written in part: an
//!   error is one of these bytes.
//!
//! # What it refuses
//! To spare memory: each block of 4096 bytes that is written is kept. A check writes what the log has, 16 MiB by
//! default, and the pages that come of that: one of each record at worst, some hundred MiB.
//!
//! Source: Linux `Documentation/filesystems/overlayfs.rst`, and the snapshot target of the device mapper.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use corewalk_base::Mutex;

use crate::device::Device;

const BLOCK_BYTES: u64 = 4096;

/// A device above another one, or above none, whose changes stay in memory. See the module's text.
#[derive(Debug)]
pub(crate) struct Overlay {
    below: Option<Arc<dyn Device>>,
    written: Mutex<Written>,
}

/// What was changed.
#[derive(Debug, Default)]
struct Written {
    len: u64,
    /// Bytes of what is below that show (V.1).
    shown: u64,
    blocks: HashMap<u64, Vec<u8>>,
}

impl Overlay {
    /// Returns a device that has what `below` has; an empty one for None.
    ///
    /// # Errors
    /// What the device below says of its length.
    pub(crate) fn new(below: Option<Arc<dyn Device>>) -> io::Result<Overlay> {
        let len = below.as_ref().map_or(Ok(0), |below| below.len())?;
        let written = Mutex::new(Written { len, shown: len, ..Written::default() });
        Ok(Overlay { below, written })
    }

    /// Reads at `offset`, which is in one block as all of `out`.
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

/// Returns the pieces of `len` bytes from `offset` on that are in one block each: where it begins, and how many
/// bytes it has.
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
            // At once, as it was asked for.
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

    /// Whatever is done to an overlay, it is as a row of bytes to which it is done, and what is below stays.
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
