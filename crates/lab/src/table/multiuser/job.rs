//! The job of a user of the tables `multiuser` and `one-cpu`: those operations of one compilation
//! that concern file names.
//!
//! The compiler looks for headers in three directories, one after the other. A third of the headers
//! is in the second directory and the rest in the third, so more than half of all lookups find
//! nothing. A generator with a fixed seed chooses which headers a source file includes.
//!
//! Source: strace(1) of a compiler: what it opens and looks for.

use crate::files::{Files, User, make_path};
use crate::table::prelude::*;

/// Where headers are looked for, in this order.
const INCLUDES: [&str; 3] = ["/usr/lib/gcc/include", "/usr/local/include", "/usr/include"];
/// Headers there are.
const HEADERS: usize = 240;
/// Headers that a unit includes.
const INCLUDED: usize = 24;
/// Units of a user.
const UNITS: usize = 16;
/// The directory that all users share.
const SHARED: &str = "/tmp";

/// The C headers that the simulated compilations look for, all in shared directories.
pub(super) struct Sources(Vec<Header>);

/// A header: the paths where the compiler looks for it in vain (`absent`), and its real path.
struct Header {
    absent: Vec<Vec<u8>>,
    path: Vec<u8>,
    ino: u64,
}

/// A user at work.
pub(super) struct Desk<'a, U: User> {
    session: &'a U,
    headers: &'a [Header],
    /// For each source file: its path, and the name of its object file.
    units: Vec<[Vec<u8>; 2]>,
    temporaries: [Vec<u8>; 2],
    shared: Option<U::Node>,
    build: Option<U::Node>,
    rng: Rng,
    next: usize,
}

impl Sources {
    /// Makes everything that `users` users need.
    ///
    /// # Errors
    /// If something cannot be made.
    pub(super) fn make<F: Files>(files: &F, users: usize) -> anyhow::Result<Sources> {
        let user = files.user();
        let make_file = |dir: &_, name: &str| {
            ensure!(user.create(dir, name.as_bytes()), "{name} was not made");
            anyhow::Ok(())
        };
        for path in INCLUDES.into_iter().chain([SHARED]) {
            make_path(&user, path)?;
        }
        let mut headers = vec![];
        for header in 0..HEADERS {
            let name = format!("header-{header:03}.h");
            let place = if header.is_multiple_of(3) { 1 } else { 2 };
            make_file(&make_path(&user, INCLUDES[place])?, &name)?;
            let at = |directory: &str| format!("{directory}/{name}").into_bytes();
            let path = at(INCLUDES[place]);
            let ino = user.resolve(&path).context("a header is missing")?;
            let absent = INCLUDES[..place].iter().map(|directory| at(directory)).collect();
            headers.push(Header { absent, path, ino });
        }
        for number in 0..users {
            let [source, build] = directories(number);
            let (source, build) = (make_path(&user, &source)?, make_path(&user, &build)?);
            for unit in 0..UNITS {
                make_file(&source, &format!("unit-{unit:02}.c"))?;
                make_file(&build, &format!("unit-{unit:02}.o"))?;
            }
        }
        Ok(Sources(headers))
    }

    /// Returns the desk of a user, at which one thread works.
    pub(super) fn desk<'a, U: User>(&'a self, session: &'a U, number: usize) -> Desk<'a, U> {
        let [source, build] = directories(number);
        let names = |unit| [format!("{source}/unit-{unit:02}.c"), format!("unit-{unit:02}.o")];
        let units = (0..UNITS).map(|unit| names(unit).map(String::into_bytes));
        Desk {
            session,
            headers: &self.0,
            units: units.collect(),
            temporaries: ["s", "o"].map(|end| format!("cc-{number}.{end}").into_bytes()),
            shared: session.open_dir(SHARED.as_bytes()),
            build: session.open_dir(build.as_bytes()),
            rng: Rng(0x5eed_0301 + 2 * number as u64),
            next: 0,
        }
    }
}

impl<U: User> Desk<'_, U> {
    /// Compiles the next source file (unit). This is one operation, which is wrong if any answer is
    /// wrong.
    pub(super) fn compile(&mut self) -> Tally {
        let unit = self.next % UNITS;
        self.next += 1;
        let is_right = self.read(unit) & self.write(unit).unwrap_or(false);
        Tally { ops: 1, wrong: u64::from(!is_right) }
    }

    /// Opens the source and everything it includes.
    fn read(&mut self, unit: usize) -> bool {
        let mut is_right = self.session.open_close(&self.units[unit][0]);
        for _ in 0..INCLUDED {
            let header = &self.headers[self.rng.below(HEADERS as u64) as usize];
            is_right &= header.absent.iter().all(|path| self.session.stat(path).is_none());
            let found = self.session.stat(&header.path);
            is_right &= found.is_some_and(|status| status.ino == header.ino);
            is_right &= self.session.open_close(&header.path);
        }
        is_right
    }

    /// Makes and removes the compiler's temporary files in [`SHARED`], and replaces the object file
    /// of the source file `unit`. Returns None if [`SHARED`] or the user's build directory is
    /// missing.
    fn write(&self, unit: usize) -> Option<bool> {
        let (session, shared, build) = (self.session, self.shared.as_ref()?, self.build.as_ref()?);
        let [assembly, object] = &self.temporaries;
        let path = [SHARED.as_bytes(), b"/", assembly].concat();
        let mut is_right = session.create(shared, assembly);
        is_right &= session.stat(&path).is_some();
        is_right &= session.create(shared, object);
        is_right &= session.unlink(shared, assembly);
        is_right &= session.stat(&path).is_none();
        is_right &= session.unlink(build, &self.units[unit][1]);
        is_right &= session.create(build, &self.units[unit][1]);
        is_right &= session.unlink(shared, object);
        Some(is_right)
    }
}

/// Returns the directories of a user's sources and objects.
fn directories(user: usize) -> [String; 2] {
    ["src", "build"].map(|name| format!("/home/user-{user}/project/{name}"))
}
