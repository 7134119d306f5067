//! The tree whose paths the tests translate, and the renames in it.
//!
//! ```text
//! /TOP/q/.../          variable 0: a directory with four names; then directories that keep theirs
//!   WAY/               variable 1: a directory with three names
//!   q/.../q/           more directories that keep their names
//!   MOVED/             variable 2: is in WAY or in the last q, with other names in each
//!     x0/ and x1/      variable 3: two directories that are exchanged
//!       LEAF, d/LEAF   variable 4: in the one made as x0, a file that changes name and parent
//!       s, mnt/        in the one made as x1, a file and a mount point; in the mount:
//!         INNER/g      variable 5: a directory with three names, and a file
//! ```
//! Some names are stored inside the dentry, others are too long for that, and some are as long as
//! possible. A variable stands for a name or a parent directory that renames change. A variable
//! takes each of its values again and again.

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

/// The values of the variable [`MOVED`] with which that directory is in [`WAY`], as a mask with one
/// bit per value.
pub(crate) const IN_WAY: u8 = 0b0011;
const SWAPPED: [&str; 2] = ["x0", "x1"];
const MOVED_AS: [&str; 4] = ["m", "moved", "m", "in-q-it-is-called-something-longer"];

/// Returns the names that `variable` can have. The value of the variable is the index of its
/// present name. No other entry in the same directories has one of these names.
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

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deep {
    /// Number of nested directories directly below [`TOP`]. All other files are below them.
    pub(crate) below_top: usize,
    /// Number of nested directories `q` beside the directory [`WAY`]. The directory [`MOVED`] is in
    /// `WAY`, or in the last of them.
    pub(crate) above_moved: usize,
}

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
    pub(crate) middle: PathRef<'v>,
    deep: Deep,
    /// All pairs of a parent and a name that a renamed file may get, with a list per variable.
    places: [Vec<(InodeRef<'v>, String)>; VARIABLES],
}

impl<'v> Tree<'v> {
    pub(crate) fn new(vfs: &'v Vfs, deep: Deep) -> Tree<'v> {
        let below = |from: &PathRef<'v>, path: &str| {
            let at = FsStruct { root: vfs.root_path(), cwd: from.clone() };
            vfs.walk(&Cred::root(), &at, path.as_bytes(), WalkFlags::FOLLOW)
                .expect("the tree has this path")
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
        vfs.mount(tmpfs(), &place("w/m/x1/mnt")).expect("the directory is not a mount point");
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

    pub(crate) fn draw(&self, rng: &mut Rng, variable: usize, now: u8) -> u8 {
        let others = self.places[variable].len() - 1;
        let drawn = rng.index(others) as u8;
        drawn + u8::from(drawn >= now)
    }

    pub(crate) fn prepare(&self, rng: &mut Rng, variable: usize, to: u8) {
        if variable == LEAF && rng.chance(1, 4) {
            let (dir, name) = &self.places[LEAF][usize::from(to)];
            make(self.vfs, dir, name, S_IFREG);
        }
    }

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

    pub(crate) fn to_moved(&self) -> Vec<Part> {
        let way = one(WAY, forms(WAY));
        let last = names(&"/q".repeat(self.deep.above_moved));
        let parts = forms(MOVED).into_iter().enumerate().map(|(value, name)| {
            let before = if IN_WAY & (1 << value) != 0 { &way } else { &last };
            [vec![before.clone()], name].concat()
        });
        vec![one(TOP, forms(TOP)), names(&self.path_of_middle()), one(MOVED, parts)]
    }

    pub(crate) fn path_of_middle(&self) -> String {
        "/q".repeat(self.deep.below_top)
    }

    pub(crate) fn below_way(&self) -> Vec<Part> {
        let mut parts = forms(MOVED);
        parts.truncate(IN_WAY.count_ones() as usize);
        vec![one(MOVED, parts)]
    }

    pub(crate) fn to_swapped(&self, which: usize) -> Vec<Part> {
        let mut parts = forms(SWAP);
        parts.rotate_left(which);
        vec![one(SWAP, parts)]
    }

    pub(crate) fn to_leaf(&self) -> Vec<Part> {
        let parts = forms(LEAF)
            .into_iter()
            .enumerate()
            .map(|(value, name)| if value < 2 { name } else { [vec![names("/d")], name].concat() });
        vec![one(LEAF, parts)]
    }

    pub(crate) fn to_inner(&self) -> Vec<Part> {
        vec![one(INNER, forms(INNER)), names("/g")]
    }
}

fn forms(variable: usize) -> Vec<Vec<Part>> {
    names_of(variable).iter().map(|name| vec![names(&format!("/{name}"))]).collect()
}

fn make<'v>(vfs: &'v Vfs, dir: &InodeRef<'_>, text: &str, mode: u32) -> InodeRef<'v> {
    let made = vfs.make(&Cred::root(), dir, name(text), Make::new(mode | 0o755, 0, 0));
    made.expect("the name is free").0
}
