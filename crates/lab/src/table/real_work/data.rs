//! The steps of the table `real-work` that work on the contents of files, without a program.
//!
//! - `write` writes the file `data` from its start to its end, 1 MiB at a time, and `read` reads it
//!   in the same way.
//! - `random write` and `random read` do so with pages of 4 KiB at random places.
//! - `dbench` writes, reads, stats, renames and removes one file of 64 KiB after the other, like
//!   the benchmark dbench.
//!
//! Before a step reads, the lab asks the kernel to drop the cached pages of the file
//! (posix_fadvise(2)). Pages that are not on the disk yet stay. So do the pages of a tmpfs, and
//! those that the host caches for a server.
//!
//! # Checks
//! Each block begins with its byte offset. A step that reads compares these 8 bytes.
//!
//! Source: fio(1), dbench(1).

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use anyhow::ensure;
use fastrand::Rng;
use rustix::fs::{Advice, fadvise};

/// The steps, in their order.
pub(super) const STEPS: [&str; 5] = ["write", "read", "random write", "random read", "dbench"];
const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Pages at random places, for each MiB of the file.
const RANDOM_PER_MIB: u64 = 16;
/// Bytes of a file of `dbench`.
static SMALL: [u8; 64 << 10] = [7; 64 << 10];

/// Runs a step in `folder`. The file `data` has `mib` MiB, and `dbench` makes this number of files.
/// Returns how many seconds it took.
///
/// # Errors
/// An error of a call, or wrong bytes.
pub(super) fn step(folder: &Path, step: &str, mib: u64) -> anyhow::Result<f64> {
    let [data, new, old] = ["data", "new", "old"].map(|name| folder.join(name));
    let start = Instant::now();
    if step == "dbench" {
        for _ in 0..mib {
            fs::write(&new, SMALL)?;
            ensure!(fs::read(&new)? == SMALL, "wrong bytes");
            fs::symlink_metadata(&new)?;
            fs::rename(&new, &old)?;
            fs::remove_file(&old)?;
        }
    } else {
        let mut options = File::options();
        blocks(&options.read(true).write(true).create(true).open(data)?, step, mib)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Writes or reads blocks of a file with `mib` MiB: all blocks of 1 MiB, or random pages.
///
/// # Errors
/// An error of a call, or wrong bytes.
pub(in crate::table) fn blocks(file: &File, step: &str, mib: u64) -> anyhow::Result<()> {
    let (bytes, count) =
        if step.starts_with("random") { (PAGE, mib * RANDOM_PER_MIB) } else { (MIB, mib) };
    let (mut block, mut rng) = (vec![0; bytes as usize], Rng::with_seed(22));
    if step.ends_with("read") {
        fadvise(file, 0, None, Advice::DontNeed)?;
    }
    for number in 0..count {
        let place = if bytes == MIB { number * MIB } else { rng.u64(..mib * MIB / PAGE) * PAGE };
        if step.ends_with("read") {
            file.read_exact_at(&mut block, place)?;
            ensure!(block[..8] == place.to_le_bytes(), "{step}: wrong bytes at {place}");
        } else {
            block[..8].copy_from_slice(&place.to_le_bytes());
            file.write_all_at(&block, place)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Scratch;

    #[test]
    fn every_step_works_in_a_plain_directory_and_notices_wrong_bytes() {
        let scratch = Scratch::in_memory("data").unwrap();
        for name in STEPS {
            assert!(step(scratch.path(), name, 4).unwrap() > 0.0, "{name}");
        }
        let data = File::options().write(true).open(scratch.path().join("data")).unwrap();
        assert_eq!(data.metadata().unwrap().len(), 4 << 20);
        data.write_all_at(&[1; 8], MIB).unwrap();
        assert!(step(scratch.path(), "read", 4).is_err());
        data.set_len(MIB).unwrap();
        assert!(step(scratch.path(), "random read", 4).is_err());
    }
}
