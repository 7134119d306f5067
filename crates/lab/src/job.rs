//! The job of the benchmark table `aim7-short`: a fixed number of operations on names, in the mix
//! that small programs make.
//!
//! The short workload of AIM7 runs many short programs. They are started by path, look for
//! libraries and headers, and ask for their own paths. They make, link and remove files in a
//! directory of the user.
//!
//! A user is a thread that does one job after the other. A job makes only those operations of these
//! programs that reach the dentry cache. All jobs make the same number of operations of each kind,
//! so that jobs per second can be compared.
//!
//! One job makes these operations:
//! - stat of a shared path, [`STATS`] times, like a search of libraries and headers.
//! - open of a shared path, [`OPENS`] times, like the start of a program.
//! - path of a shared file, [`LINKS`] times, like readlink of `/proc/PID/exe`.
//! - path of the user's directory, [`CWDS`] times, like getcwd.
//! - create, open, rename, path, stat of the old name, unlink, [`FILES`] times, like the programs
//!   creat-clo, link_test and dir_rtns of AIM7.
//!
//! # Checks
//! Every answer is compared with the right one.
//!
//! Source: AIM7 `workfile.short` and its tests; the profile in Long's patch of September 2013
//! (document 001 in `documents.md`). In it, half of the calls of d_path come from readlink in
//! `/proc`, and half from getcwd.

use corewalk::FileKind;
use fastrand::Rng;

use crate::before::{Dentries, make_path};
use crate::corpus::{Corpus, ROOT};
use crate::crew::{Laps, Turn};
use crate::questions::Tally;

/// Stats of shared paths.
pub(crate) const STATS: usize = 16;
/// Opens of shared paths.
pub(crate) const OPENS: usize = 8;
/// Translations of shared files.
pub(crate) const LINKS: usize = 4;
/// Translations of the user's directory.
pub(crate) const CWDS: usize = 4;
/// Number of files that a job makes and removes.
pub(crate) const FILES: usize = 4;
/// Paths that all users share.
const SHARED: usize = 256;

/// A simulated user: a directory, and the files and paths that the jobs use.
pub(crate) struct User {
    home: u64,
    home_path: Vec<u8>,
    /// Name and path of each file, before and after its rename.
    files: Vec<[(Vec<u8>, Vec<u8>); 2]>,
    /// Paths with their inode numbers. All users share them, each in another order.
    shared: Vec<(u64, Vec<u8>)>,
}

impl User {
    /// Returns the simulated user number `number`, and makes its directory in `dentries`.
    /// `dentries` must have the entries of `corpus`, the tree of names.
    pub(crate) fn new(dentries: &dyn Dentries, corpus: &Corpus, number: usize) -> User {
        let home_path = format!("/home/user-{number:02}/work").into_bytes();
        let home = make_path(dentries, &home_path);
        let file = |at: usize| {
            ["tmp_file", "tmp_link"].map(|name| {
                let name = format!("{name}.{at}").into_bytes();
                let path = [&home_path[..], b"/", &name].concat();
                (name, path)
            })
        };
        let files = (0..FILES).map(file).collect();
        // All users have the same paths, each in another order.
        let mut rng = Rng::with_seed(0x5eed_0301);
        let mut shared: Vec<(u64, Vec<u8>)> = (0..SHARED)
            .map(|_| rng.u64(..corpus.len() as u64) + 1)
            .filter(|&ino| ino != ROOT)
            .map(|ino| (ino, corpus.path(ino)))
            .collect();
        let len = shared.len();
        shared.rotate_left(number * 37 % len);
        User { home, home_path, files, shared }
    }

    /// Does jobs until the time slice is over, at least one. `stat` and `open` resolve a path in
    /// `dentries` to an inode number.
    pub(crate) fn work<D: Dentries + ?Sized>(
        &self,
        dentries: &D,
        turn: Turn<'_>,
        stat: impl Fn(&[u8]) -> Option<u64>,
        open: impl Fn(&[u8]) -> Option<u64>,
    ) -> Laps {
        let mut shared = self.shared.iter().cycle();
        turn.run_jobs(|| {
            let mut tally = Tally { ops: 1, wrong: 0 };
            let mut count = |is_right: bool| tally.wrong += u64::from(!is_right);
            for (ino, path) in shared.by_ref().take(STATS) {
                count(stat(path) == Some(*ino));
            }
            for (ino, path) in shared.by_ref().take(OPENS) {
                count(open(path) == Some(*ino));
            }
            for (ino, path) in shared.by_ref().take(LINKS) {
                count(dentries.path(*ino).is_some_and(|found| found == *path));
            }
            for _ in 0..CWDS {
                count(dentries.path(self.home).is_some_and(|found| found == self.home_path));
            }
            for [(old, old_path), (new, new_path)] in &self.files {
                let Some(made) = dentries.create(self.home, old, FileKind::Regular) else {
                    count(false);
                    continue;
                };
                count(open(old_path) == Some(made));
                count(dentries.rename((self.home, old), (self.home, new)));
                count(dentries.path(made).is_some_and(|found| found == *new_path));
                count(stat(old_path).is_none());
                count(dentries.unlink(self.home, new));
            }
            tally
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::Namespace as _;
    use crate::before::filled;
    use crate::before::tests::all;
    use crate::ours::Ours;

    fn work(dentries: &dyn Dentries, user: &User) -> crate::crew::Slice {
        let time = std::time::Duration::from_millis(10);
        crate::crew::run(1, time, |_, turn| dentries.be_user(user, turn))
    }

    #[test]
    fn jobs_of_every_design_get_right_answers_and_leave_nothing() {
        let corpus = Corpus::collect(2000);
        let mut designs = all(&corpus);
        designs.push(Box::new(filled(Ours::empty(4000).unwrap(), &corpus)));
        for dentries in designs {
            let variant = dentries.variant();
            let user = User::new(&*dentries, &corpus, 3);
            let done = work(&*dentries, &user);
            assert!(done.ops > 0 && done.wrong == 0, "{variant}: {done:?}");
            assert_eq!(dentries.walk(b"/home/user-03/work/tmp_file.0"), None, "{variant}");
            assert_eq!(dentries.walk(b"/home/user-03/work/tmp_link.0"), None, "{variant}");
        }
    }

    #[test]
    fn job_in_a_namespace_that_differs_counts_wrong_answers() {
        let corpus = Corpus::collect(500);
        let dentries =
            filled(crate::before::Before::new(crate::before::Design::SeqLock, 1000), &corpus);
        let user = User::new(&dentries, &corpus, 0);
        assert!(dentries.rename((1, b"usr"), (1, b"opt")));
        assert!(work(&dentries, &user).wrong > 0);
        assert_eq!(dentries.stats().retries, 0);
    }
}
