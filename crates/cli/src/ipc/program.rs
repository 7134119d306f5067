//! Finds the command of `exec`, and checks that the dynamic loader will load a preload library for
//! it.
//!
//! `exec` refuses three kinds of programs, which would silently use the kernel's objects:
//! - A static program has no dynamic loader.
//! - For a program with set-user-ID, set-group-ID or file capabilities, the loader ignores the
//!   environment.
//! - A program for another machine has another loader.
//!
//! For a script (`#!`), the interpreter is checked. Programs that the command starts later are not
//! checked.
//!
//! Source: ld.so(8) "Secure-execution mode"; elf(5); execve(2).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::process::{getegid, geteuid};

/// The longest chain of interpreters, as in execve(2).
const DEPTH_MAX: u32 = 4;

const SCRIPT_BYTES: usize = 256;

const LOADER_BYTES: usize = 4096;

const SET_USER: u32 = 0o4000;
/// The bits set-group-ID and execution by the group. The set-group-ID bit alone gives no privilege.
const SET_GROUP: u32 = 0o2010;

const PT_INTERP: u32 = 3;

const ET_DYN: u16 = 3;

const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The command does not exist. Exit status 127.
    NotFound,
    /// The command exists, but cannot be executed or cannot load the preload library. Exit status
    /// 126.
    NotRunnable(&'static str),
}

pub(super) fn find(command: &OsStr, folders: &OsStr) -> Result<PathBuf, Refusal> {
    if command.as_bytes().contains(&b'/') {
        let path = PathBuf::from(command);
        return match path.exists() {
            true => Ok(path),
            false => Err(Refusal::NotFound),
        };
    }
    let candidates = std::env::split_paths(folders).map(|folder| folder.join(command));
    let mut is_forbidden = false;
    for path in candidates.filter(|path| path.is_file()) {
        if rustix::fs::access(&path, Access::EXEC_OK).is_ok() {
            return Ok(path);
        }
        is_forbidden = true;
    }
    Err(if is_forbidden { Refusal::NotRunnable("Permission denied") } else { Refusal::NotFound })
}

pub(super) fn check(path: &Path) -> Result<(), Refusal> {
    check_at(path, 0)
}

fn check_at(path: &Path, depth: u32) -> Result<(), Refusal> {
    // execve(2) may run a program that cannot be read, so such a program is accepted.
    let (Ok(file), Ok(status)) = (File::open(path), fs::metadata(path)) else { return Ok(()) };
    let is_other_user = status.mode() & SET_USER != 0 && status.uid() != geteuid().as_raw();
    let is_other_group =
        status.mode() & SET_GROUP == SET_GROUP && status.gid() != getegid().as_raw();
    let has_capabilities = !geteuid().is_root()
        && rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64][..]).is_ok();
    if is_other_user || is_other_group || has_capabilities {
        return Err(Refusal::NotRunnable(
            "a program that gains privileges loads no library of ours",
        ));
    }
    let start = start_of(&file);
    match interpreter(&start) {
        Some(_) if depth == DEPTH_MAX => Ok(()),
        Some(interpreter) => check_at(&interpreter, depth + 1),
        None => check_elf(&file, &start),
    }
}

/// Reads the first bytes of a file. If a read fails, returns the bytes that were read before.
fn start_of(file: &File) -> Vec<u8> {
    let mut start = Vec::new();
    let _ = file.take(SCRIPT_BYTES as u64).read_to_end(&mut start);
    start
}

fn interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    words.next().map(|word| PathBuf::from(OsStr::from_bytes(word)))
}

fn check_elf(file: &File, start: &[u8]) -> Result<(), Refusal> {
    // A file that is no ELF file is accepted: a shell may run it as a script.
    if !is_elf(start) {
        return Ok(());
    }
    if !is_for_this_machine(start) {
        return Err(Refusal::NotRunnable("a program for another machine loads no library of ours"));
    }
    match loader_place(file, start) {
        Err(_) => Ok(()),
        Ok(Some((at, bytes))) => check_loader(file, at, bytes),
        Ok(None) if is_loader(file) => Ok(()),
        Ok(None) => Err(Refusal::NotRunnable("a static program loads no library of ours")),
    }
}

/// Returns true if the dynamic loader of this machine can load the file as a library.
pub(super) fn is_shared_object(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    let start = start_of(&file);
    let is_library = is_elf(&start) && is_for_this_machine(&start) && half(&start, 16) == ET_DYN;
    // A position-independent program has the same ELF type as a library. But a program names its
    // dynamic loader, and a library names none.
    Ok(is_library && matches!(loader_place(&file, &start), Ok(None)))
}

fn is_elf(start: &[u8]) -> bool {
    start.starts_with(b"\x7fELF") && start.len() >= 64
}

fn is_for_this_machine(start: &[u8]) -> bool {
    let is_64_bit_little = start[4] == 2 && start[5] == 1;
    is_64_bit_little && half(start, 18) == MACHINE
}

fn half(start: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([start[at], start[at + 1]])
}

fn loader_place(file: &File, start: &[u8]) -> io::Result<Option<(u64, u64)>> {
    let table = u64::from_le_bytes(start[32..40].try_into().expect("eight bytes"));
    let (entry_bytes, entries) = (half(start, 54), half(start, 56));
    for entry in 0..u64::from(entries) {
        let mut header = [0; 56];
        let at = table.saturating_add(entry * u64::from(entry_bytes));
        file.read_exact_at(&mut header, at)?;
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("in it"));
        if word(0) as u32 == PT_INTERP {
            return Ok(Some((word(8), word(32))));
        }
    }
    Ok(None)
}

/// Returns true if the program is the dynamic loader itself. It is a static program that obeys
/// `LD_PRELOAD`, so `exec` accepts it.
fn is_loader(file: &File) -> bool {
    use std::os::fd::AsRawFd as _;
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux"))
}

fn check_loader(file: &File, at: u64, bytes: u64) -> Result<(), Refusal> {
    let mut name = vec![0; usize::try_from(bytes).unwrap_or(0).min(LOADER_BYTES)];
    let read = file.read_exact_at(&mut name, at);
    if read.is_ok() && String::from_utf8_lossy(&name).contains("ld-musl") {
        return Err(Refusal::NotRunnable("a program of musl cannot load our library for glibc"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_found_as_a_shell_finds_it() {
        let folders = OsStr::new("/nowhere:/bin:/usr/bin");
        assert!(find(OsStr::new("sh"), folders).is_ok_and(|path| path.ends_with("sh")));
        assert!(find(OsStr::new("/bin/sh"), OsStr::new("")).is_ok());
        assert_eq!(find(OsStr::new("no-such-command"), folders), Err(Refusal::NotFound));
        assert_eq!(find(OsStr::new("./no-such-command"), folders), Err(Refusal::NotFound));
    }

    #[test]
    fn interpreter_is_the_first_word() {
        let path = |text: &[u8]| interpreter(text);
        assert_eq!(path(b"#!/bin/sh\nx"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(path(b"#! /usr/bin/env python3\n"), Some(PathBuf::from("/usr/bin/env")));
        assert_eq!(path(b"#!\n"), None);
        assert_eq!(path(b"echo"), None);
    }

    #[test]
    fn programs_with_the_loader_of_this_system_pass() {
        assert_eq!(check(Path::new("/bin/sh")), Ok(()));
        assert_eq!(check(&std::env::current_exe().expect("this program")), Ok(()));
    }

    #[test]
    fn static_program_and_one_of_another_machine_are_refused() {
        let folder = std::env::temp_dir().join(format!("corewalk-elf-{}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        let mut header = vec![0_u8; 64];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        header[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        let path = folder.join("program");
        let judged = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("a file");
            check(&path)
        };
        let reason = |bytes: &[u8]| match judged(bytes) {
            Err(Refusal::NotRunnable(reason)) => reason,
            other => panic!("{other:?}"),
        };
        assert!(reason(&header).contains("static"));
        header[18] = 0;
        assert!(reason(&header).contains("another machine"));
        // `check` accepts a file that is no complete ELF file, since execve(2) reports the error.
        assert_eq!(judged(&header[..40]), Ok(()));
        assert_eq!(judged(b"echo hello\n"), Ok(()));
        fs::remove_dir_all(&folder).expect("it is ours");
    }
}
