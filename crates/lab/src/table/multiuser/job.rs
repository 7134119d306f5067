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

/// The directories where the compiler looks for headers, in this order.
const INCLUDES: [&str; 3] = ["/usr/lib/gcc/include", "/usr/local/include", "/usr/include"];
/// Number of all headers.
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

impl Sources {
    /// Makes all files and directories that the jobs of `users` users need.
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

    /// Compiles the source files (units) of a user in turn until the slice is over. The compilation
    /// of one file is one operation. It counts as wrong if any answer is wrong.
    pub(super) fn compile<U: User>(&self, session: &U, number: usize, turn: Turn<'_>) -> Laps {
        let [source, build] = directories(number);
        let names = |unit| [format!("{source}/unit-{unit:02}.c"), format!("unit-{unit:02}.o")];
        let units: Vec<_> = (0..UNITS).map(|unit| names(unit).map(String::into_bytes)).collect();
        let [assembly, object] = ["s", "o"].map(|end| format!("cc-{number}.{end}").into_bytes());
        let open = |path: &str| session.open_dir(path.as_bytes()).expect("it was made");
        let (shared, build) = (open(SHARED), open(&build));
        let (mut units, mut rng) =
            (units.iter().cycle(), Rng::with_seed(0x5eed_0301 + 2 * number as u64));
        turn.run_jobs(|| {
            let [unit, made] = units.next().expect("there are units");
            let mut is_right = self.read(session, unit, &mut rng);
            // The compiler makes temporary files in the shared directory, and replaces the object
            // file.
            let path = [SHARED.as_bytes(), b"/", &assembly].concat();
            is_right &= session.create(&shared, &assembly);
            is_right &= session.stat(&path).is_some();
            is_right &= session.create(&shared, &object);
            is_right &= session.unlink(&shared, &assembly);
            is_right &= session.stat(&path).is_none();
            is_right &= session.unlink(&build, made);
            is_right &= session.create(&build, made);
            is_right &= session.unlink(&shared, &object);
            Tally { ops: 1, wrong: u64::from(!is_right) }
        })
    }

    /// Opens a source file and everything it includes.
    fn read(&self, session: &impl User, unit: &[u8], rng: &mut Rng) -> bool {
        let mut is_right = session.open_close(unit);
        for _ in 0..INCLUDED {
            let header = &self.0[rng.u64(..HEADERS as u64) as usize];
            is_right &= header.absent.iter().all(|path| session.stat(path).is_none());
            is_right &= session.stat(&header.path).is_some_and(|status| status.ino == header.ino);
            is_right &= session.open_close(&header.path);
        }
        is_right
    }
}

/// Returns the directories of a user's sources and objects.
fn directories(user: usize) -> [String; 2] {
    ["src", "build"].map(|name| format!("/home/user-{user}/project/{name}"))
}
