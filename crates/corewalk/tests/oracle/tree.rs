//! The tree whose paths are asked for, and the renames that change it.
//!
//! ```text
//! /TOP/q/.../             variable 0: a directory with four names, and below it some that keep theirs
//!   WAY/                  variable 1: a directory with three names
//!   q/.../q/              some more that keep their names
//!   MOVED/                variable 2: lies in WAY or in the last q, with a name of its own in each
//!     x0/ and x1/         variable 3: two directories that are exchanged
//!       LEAF, d/LEAF      variable 4: in what was made as x0, a file that changes its name, and its parent
//!       s, mnt/           in what was made as x1, a file, and a mount point; in what is mounted:
//!         INNER/g         variable 5: a directory with three names, and a file
//! ```
//! Names are of all kinds: short, too long for a dentry, as long as can be, and all of them come back.

use std::sync::Arc;

use corewalk::attr::mode::{S_IFDIR, S_IFREG};
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Cred, FsStruct, InodeRef, Make, PathRef, RenameMode, Vfs, WalkFlags};
use corewalk_testkit::rng::Rng;

use crate::fixtures::name;
use crate::formatting::{Part, names, one};
use crate::judge::VARIABLES;

pub(crate) const TOP: usize = 0;
pub(crate) const WAY: usize = 1;
pub(crate) const MOVED: usize = 2;
pub(crate) const SWAP: usize = 3;
pub(crate) const LEAF: usize = 4;
pub(crate) const INNER: usize = 5;

/// The values of [`MOVED`] with which it lies in [`WAY`].
pub(crate) const IN_WAY: u8 = 0b0011;
const SWAPPED: [&str; 2] = ["x0", "x1"];
const MOVED_AS: [&str; 4] = ["m", "moved", "m", "in-q-it-is-called-something-longer"];

/// Returns what a variable is called with each value. No other name in the same directories is one of these.
pub(crate) fn names_of(variable: usize) -> Vec<String> {
    match variable {
        TOP => vec!["t".into(), "t".repeat(255), "top-of-all".into(), "t".repeat(40)],
        WAY => vec!["w".into(), "way".into(), "w".repeat(60)],
        INNER => vec!["i".into(), "i".repeat(30), "i".repeat(200)],
        LEAF => vec!["f".into(), "f".repeat(255), "leaf".into(), "f".repeat(41)],
        MOVED => MOVED_AS.map(String::from).into(),
        _ => SWAPPED.map(String::from).into(),
    }
}

fn tmpfs() -> Arc<Tmpfs> {
    Arc::new(Tmpfs::new(TmpfsOptions::default()))
}

/// How many directories called `q` there are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deep {
    /// Below [`TOP`] and above all else: so many names lie between the first that a translation reads
    /// and the last.
    pub(crate) below_top: usize,
    /// Above [`MOVED`] on one of its ways.
    pub(crate) above_moved: usize,
}

/// The tree, and what is held of it.
pub(crate) struct Tree<'v> {
    pub(crate) vfs: &'v Vfs,
    pub(crate) root: PathRef<'v>,
    pub(crate) way: PathRef<'v>,
    pub(crate) moved: PathRef<'v>,
    pub(crate) swapped: [PathRef<'v>; 2],
    pub(crate) leaf: PathRef<'v>,
    pub(crate) beside: PathRef<'v>,
    pub(crate) mounted: PathRef<'v>,
    pub(crate) inner: PathRef<'v>,
    /// The directory that [`WAY`] is in.
    pub(crate) middle: PathRef<'v>,
    deep: Deep,
    /// Where each variable is with each value: a directory and a name in it.
    places: [Vec<(InodeRef<'v>, String)>; VARIABLES],
}

impl<'v> Tree<'v> {
    /// Makes the tree, with all variables at their first values.
    pub(crate) fn new(vfs: &'v Vfs, deep: Deep) -> Tree<'v> {
        let below = |from: &PathRef<'v>, path: &str| {
            let at = FsStruct { root: vfs.root_path(), cwd: from.clone() };
            vfs.walk(&Cred::root(), &at, path.as_bytes(), WalkFlags::FOLLOW).expect("it was made")
        };
        let root = vfs.root_path();
        make(vfs, &root.inode(), "t", S_IFDIR);
        let top = below(&root, "t");
        let mut middle = top.clone();
        for _ in 0..deep.below_top {
            make(vfs, &middle.inode(), "q", S_IFDIR);
            middle = below(&middle, "q");
        }
        let place = |path: &str| below(&middle, path);
        let way = make(vfs, &middle.inode(), "w", S_IFDIR);
        let mut last = middle.inode();
        for _ in 0..deep.above_moved {
            last = make(vfs, &last, "q", S_IFDIR);
        }
        let moved = make(vfs, &way, "m", S_IFDIR);
        let [first, second] = SWAPPED.map(|name| make(vfs, &moved, name, S_IFDIR));
        make(vfs, &first, "f", S_IFREG);
        let sub = make(vfs, &first, "d", S_IFDIR);
        make(vfs, &second, "s", S_IFREG);
        make(vfs, &second, "mnt", S_IFDIR);
        vfs.mount(tmpfs(), &place("w/m/x1/mnt")).expect("nothing is mounted there");
        let mounted = place("w/m/x1/mnt");
        let inner = make(vfs, &mounted.inode(), "i", S_IFDIR);
        make(vfs, &inner, "g", S_IFREG);
        let in_one = |dir: &InodeRef<'v>, variable| {
            names_of(variable).into_iter().map(|name| (dir.clone(), name)).collect::<Vec<_>>()
        };
        let in_two = |dirs: [&InodeRef<'v>; 2], variable| {
            let dirs = dirs.map(|dir| [dir.clone(), dir.clone()]).concat();
            dirs.into_iter().zip(names_of(variable)).collect()
        };
        let places = [
            in_one(&root.inode(), TOP),
            in_one(&middle.inode(), WAY),
            in_two([&way, &last], MOVED),
            in_one(&moved, SWAP),
            in_two([&first, &sub], LEAF),
            in_one(&mounted.inode(), INNER),
        ];
        Tree {
            way: place("w"),
            moved: place("w/m"),
            swapped: SWAPPED.map(|name| place(&format!("w/m/{name}"))),
            leaf: place("w/m/x0/f"),
            beside: place("w/m/x1/s"),
            inner: place("w/m/x1/mnt/i/g"),
            mounted,
            root,
            middle,
            deep,
            vfs,
            places,
        }
    }

    /// Draws a value that a variable does not have now.
    pub(crate) fn draw(&self, rng: &mut Rng, variable: usize, now: u8) -> u8 {
        let others = self.places[variable].len() - 1;
        let drawn = rng.index(others) as u8;
        drawn + u8::from(drawn >= now)
    }

    /// Makes what a rename of a variable replaces, now and then.
    pub(crate) fn prepare(&self, rng: &mut Rng, variable: usize, to: u8) {
        if variable == LEAF && rng.chance(1, 4) {
            let (dir, name) = &self.places[LEAF][usize::from(to)];
            make(self.vfs, dir, name, S_IFREG);
        }
    }

    /// Changes a variable by one rename. Its values before and after differ.
    pub(crate) fn change(&self, variable: usize, from: u8, to: u8) {
        let place = |value: u8| {
            let (dir, text) = &self.places[variable][usize::from(value)];
            (dir, name(text))
        };
        let mode = match variable {
            SWAP => RenameMode::Exchange,
            LEAF => RenameMode::Replace,
            _ => RenameMode::NoReplace,
        };
        let renamed = self.vfs.rename(&Cred::root(), place(from), place(to), mode);
        assert_eq!(renamed, Ok(()), "variable {variable} from {from} to {to}");
    }

    /// Returns how [`MOVED`] is spelled from the root.
    pub(crate) fn to_moved(&self) -> Vec<Part> {
        let way = one(WAY, spellings(WAY));
        let last = names(&"/q".repeat(self.deep.above_moved));
        let parts = spellings(MOVED).into_iter().enumerate().map(|(value, name)| {
            let before = if IN_WAY & (1 << value) != 0 { &way } else { &last };
            [vec![before.clone()], name].concat()
        });
        vec![one(TOP, spellings(TOP)), names(&self.spelled_middle()), one(MOVED, parts)]
    }

    /// Returns how the directory that [`WAY`] is in is spelled from [`TOP`].
    pub(crate) fn spelled_middle(&self) -> String {
        "/q".repeat(self.deep.below_top)
    }

    /// Returns how [`MOVED`] is spelled from [`WAY`], if it lies there.
    pub(crate) fn below_way(&self) -> Vec<Part> {
        let mut parts = spellings(MOVED);
        parts.truncate(IN_WAY.count_ones() as usize);
        vec![one(MOVED, parts)]
    }

    /// Returns how one of the two directories that are exchanged is spelled from [`MOVED`].
    pub(crate) fn to_swapped(&self, which: usize) -> Vec<Part> {
        let mut parts = spellings(SWAP);
        parts.rotate_left(which);
        vec![one(SWAP, parts)]
    }

    /// Returns how the file is spelled from what was made as `x0`.
    pub(crate) fn to_leaf(&self) -> Vec<Part> {
        let parts = spellings(LEAF)
            .into_iter()
            .enumerate()
            .map(|(value, name)| if value < 2 { name } else { [vec![names("/d")], name].concat() });
        vec![one(LEAF, parts)]
    }

    /// Returns how the file in the mount is spelled from the root of that.
    pub(crate) fn to_inner(&self) -> Vec<Part> {
        vec![one(INNER, spellings(INNER)), names("/g")]
    }
}

fn spellings(variable: usize) -> Vec<Vec<Part>> {
    names_of(variable).iter().map(|name| vec![names(&format!("/{name}"))]).collect()
}

fn make<'v>(vfs: &'v Vfs, dir: &InodeRef<'_>, text: &str, mode: u32) -> InodeRef<'v> {
    let made = vfs.make(&Cred::root(), dir, name(text), Make::new(mode | 0o755, 0, 0));
    made.expect("there is no such name yet").0
}
