//! The host's ext4 on a loop device, whose file is in memory.
//!
//! Inodes have 128 bytes, so that an attribute has no room in them and goes to a block. mount(8) makes
//! the loop device such that it goes with the mount (`LO_FLAGS_AUTOCLEAR`), however that ends; the file
//! is the caller's to remove.
//!
//! Source: mkfs.ext4(8), ext4(5) for `no_mbcache`, mount(8), loop(4).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use super::Mounted;

/// Bytes of the device besides what its files take; the file has holes.
const ROOM_BYTES: u64 = 512 << 20;
/// Bytes per file: an inode, a name, a block of attributes, and as much again.
const FILE_BYTES: u64 = 16 << 10;

/// Makes a file system for so many files in the new file `image`, and mounts it at `directory`.
///
/// # Errors
/// If that is not allowed or to be had here.
pub(crate) fn ext4(
    variant: &'static str,
    (image, files): (&Path, usize),
    options: &str,
    directory: PathBuf,
) -> anyhow::Result<Mounted> {
    let file = File::create_new(image).with_context(|| format!("{}", image.display()))?;
    file.set_len(ROOM_BYTES + files as u64 * FILE_BYTES)?;
    let inodes = (files + 1024).to_string();
    run(Command::new("mkfs.ext4")
        .args(["-q", "-F", "-I", "128", "-b", "4096", "-N", &inodes, "-J", "size=64"])
        .arg(image))?;
    let options = ["loop", options].join(",");
    let options = options.trim_end_matches(',');
    run(Command::new("mount").args(["-t", "ext4", "-o", options]).arg(image).arg(&directory))?;
    let mounted = Mounted { variant, directory, server: None, is_mount: true };
    ensure!(mounted.is_mounted(), "mount(8) mounted nothing");
    Ok(mounted)
}

/// Runs a program to its end; what it complains of is the error.
fn run(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{name} does not start"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}", complaint.trim().replace('\n', "; "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Scratch;

    #[test]
    fn device_of_ext4_goes_with_the_mount_and_options_are_heeded() {
        let images = Scratch::new(Path::new("/dev/shm"), "ext4").unwrap();
        let points = Scratch::new(&std::env::temp_dir(), "ext4").unwrap();
        let image = images.path().join("image");
        let point = points.folder("mnt").unwrap();
        let mounted = match ext4("off", (&image, 10), "no_mbcache", point.clone()) {
            Ok(mounted) => mounted,
            Err(error) => {
                eprintln!("skipped: {error:#}");
                return;
            }
        };
        assert!(mounted.terms().unwrap().options.contains("mbcache"));
        let is_attached = || {
            let devices = std::fs::read_dir("/sys/block").unwrap().flatten();
            let files = devices.map(|device| device.path().join("loop/backing_file"));
            let name = image.to_str().unwrap();
            files.flat_map(std::fs::read_to_string).any(|file| file.trim_end().starts_with(name))
        };
        assert!(is_attached());
        drop(mounted);
        assert!(!is_attached());
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(point.to_str().unwrap()));
    }

    #[test]
    fn program_that_complains_is_quoted() {
        let error = run(Command::new("mkfs.ext4").arg("/no/such/file")).unwrap_err();
        assert!(format!("{error:#}").contains("mkfs.ext4"), "{error:#}");
    }
}
