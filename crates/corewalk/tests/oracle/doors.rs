//! A door is an interface through which the tests ask the namespace about the tree. It is a
//! translation of a file to its path, a lookup or a walk.
//!
//! With each answer, a door returns a claim: the names that the tree must have had for the answer
//! to be true.

use std::cell::{Cell, RefCell};

use corewalk::{Cred, Errno, FsStruct, PathFormat, PathKind, WalkFlags};
use corewalk_testkit::rng::Rng;

use crate::fixtures::name;
use crate::formatting::{Part, names, read};
use crate::judge::{ANY, Seen, VARIABLES};
use crate::tree::{IN_WAY, INNER, MOVED, TOP, Tree, WAY, names_of};

pub(crate) const ROOM: usize = 4096;

/// The claim that an answer makes about the tree: for each variable, the values with which the
/// answer is true. If there are none, the claim is an error text.
pub(crate) type Claim = Result<Seen, String>;
type Ask<'a> = Box<dyn Fn(&mut Rng, &mut [u8]) -> Claim + Sync + 'a>;

pub(crate) struct Door<'a> {
    pub(crate) name: &'static str,
    /// Maximum number of failed lock-free attempts of one call. After them, a call may make one
    /// more attempt, under the lock that blocks moves of directories.
    pub(crate) passes_max: u64,
    pub(crate) ask: Ask<'a>,
}

/// Number of lock-free attempts that a path translation makes before it takes the lock (see
/// `Vfs::stats` and `PathRef::path_of`).
pub(crate) const PASSES: u64 = 4;
/// Maximum number of lock-free attempts of a path translation by inode number: one without a
/// reference on the inode, and up to `PASSES` with one.
const PASSES_BY_NUMBER: u64 = PASSES + 1;
/// Maximum number of failed lock-free attempts of a translation into a buffer. Up to `PASSES`
/// attempts use a small read set, and up to `PASSES` use a large one.
///
/// The 1 is subtracted because the last attempt with the small read set does not fail. It finds
/// more names on the path than the small read set can hold.
const PASSES_INTO_BUFFER: u64 = PASSES + PASSES - 1;

fn claim(parts: &[Part], path: &[u8]) -> Claim {
    let seen = read(parts, path, [ANY; VARIABLES]);
    seen.ok_or_else(|| format!("the path never existed: {}", path.escape_ascii()))
}

fn linked(parts: &[Part], path: &[u8], kind: PathKind) -> Claim {
    match kind {
        PathKind::Linked => claim(parts, path),
        kind => Err(format!("{kind:?}: {}", path.escape_ascii())),
    }
}

fn door<'a>(
    name: &'static str,
    passes_max: u64,
    ask: impl Fn(&mut Rng, &mut [u8]) -> Claim + Sync + 'a,
) -> Door<'a> {
    Door { name, passes_max, ask: Box::new(ask) }
}

pub(crate) fn translations<'a>(tree: &'a Tree<'a>) -> Vec<Door<'a>> {
    let mut doors = from_the_root(tree);
    doors.extend(from_elsewhere(tree));
    doors
}

pub(crate) fn into_buffers<'a>(tree: &'a Tree<'a>) -> Vec<Door<'a>> {
    let mut doors = from_the_root(tree);
    doors.retain(|door| door.passes_max == PASSES_INTO_BUFFER);
    doors
}

fn to_leaf(tree: &Tree<'_>) -> Vec<Part> {
    [tree.to_moved(), tree.to_swapped(0), tree.to_leaf()].concat()
}

fn from_the_root<'a>(tree: &'a Tree<'a>) -> Vec<Door<'a>> {
    let root = &tree.root;
    let leaf = to_leaf(tree);
    let moved = tree.to_moved();
    let beside = [tree.to_moved(), tree.to_swapped(1), vec![names("/s")]].concat();
    let inner =
        [tree.to_moved(), tree.to_swapped(1), vec![names("/mnt")], tree.to_inner()].concat();
    let (of_leaf, of_number, in_buffer, of_inner) =
        (leaf.clone(), leaf.clone(), leaf.clone(), inner.clone());
    let (inode, ino) = (tree.leaf.inode(), tree.leaf.inode().ino());
    vec![
        door("path_of", PASSES, move |_, _| {
            let (path, kind) = tree.leaf.path_of(root);
            linked(&leaf, &path, kind)
        }),
        door("path_of_in", PASSES_INTO_BUFFER, move |_, buf| {
            let (path, kind) =
                tree.leaf.path_of_in(root, buf).map_err(|error| error.to_string())?;
            linked(&in_buffer, path, kind)
        }),
        door("path", PASSES, move |_, _| {
            claim(&of_leaf, &inode.path().map_err(|error| error.to_string())?)
        }),
        door("path_of_ino", PASSES_BY_NUMBER, move |_, _| {
            let path = tree.vfs.path_of_ino(ino).map_err(|error| error.to_string())?;
            claim(&of_number, &path)
        }),
        door("getcwd", PASSES, move |_, _| {
            claim(&moved, &tree.moved.getcwd(root).map_err(|error| error.to_string())?)
        }),
        door("dentry_path", PASSES, move |_, _| claim(&beside, &tree.beside.dentry_path())),
        door("d_path across a mount", PASSES, move |_, _| claim(&inner, &tree.inner.d_path(root))),
        door("d_absolute_path across a mount", PASSES_INTO_BUFFER, move |_, buf| {
            let path = tree
                .inner
                .format_in(PathFormat::DAbsolutePath, buf)
                .map_err(|error| error.to_string())?;
            claim(&of_inner, path)
        }),
    ]
}

fn from_elsewhere<'a>(tree: &'a Tree<'a>) -> Vec<Door<'a>> {
    let below_moved = [tree.to_swapped(0), tree.to_leaf()].concat();
    let below_way = [tree.below_way(), below_moved.clone()].concat();
    let (below_root, inner) = (to_leaf(tree), tree.to_inner());
    vec![
        door("path_of below a directory that is moved", PASSES, move |_, _| {
            let (path, kind) = tree.leaf.path_of(&tree.moved);
            linked(&below_moved, &path, kind)
        }),
        door("path_of below the root of a mount", PASSES, move |_, _| {
            let (path, kind) = tree.inner.path_of(&tree.mounted);
            linked(&inner, &path, kind)
        }),
        door("path_of below what it is moved out of", PASSES, move |_, _| {
            let (path, kind) = tree.leaf.path_of(&tree.way);
            let mut seen = match kind {
                PathKind::Linked => claim(&below_way, &path)?,
                PathKind::OutsideRoot => claim(&below_root, &path)?,
                kind => return Err(format!("{kind:?}: {}", path.escape_ascii())),
            };
            let is_inside = kind == PathKind::Linked;
            seen[MOVED] &= if is_inside { IN_WAY } else { !IN_WAY };
            Ok(seen)
        }),
        door("is_subdir of what it is moved out of", PASSES, move |_, _| {
            let mut seen = [ANY; VARIABLES];
            let is_inside = tree.inner.is_subdir(&tree.way);
            seen[MOVED] = if is_inside { IN_WAY } else { !IN_WAY };
            Ok(seen)
        }),
    ]
}

/// Returns doors that look up a name. If a lookup finds no such name, its claim is that the name
/// did not exist at one instant.
pub(crate) fn lookups<'a>(tree: &'a Tree<'a>) -> Vec<Door<'a>> {
    let lookup = |variable: usize| {
        let dir = [(TOP, &tree.root), (WAY, &tree.middle), (INNER, &tree.mounted)]
            .into_iter()
            .find_map(|(known, dir)| (known == variable).then(|| dir.inode()))
            .expect("a directory whose names are its children's only");
        let names = names_of(variable);
        move |rng: &mut Rng, _: &mut [u8]| {
            let value = rng.index(names.len());
            let mut seen = [ANY; VARIABLES];
            let found = tree.vfs.lookup(&Cred::root(), &dir, name(&names[value]));
            seen[variable] = match found.map(drop) {
                Ok(()) => 1 << value,
                Err(Errno::NOENT) => !(1 << value),
                Err(error) => return Err(error.to_string()),
            };
            Ok(seen)
        }
    };
    vec![
        door("lookup of the top", 0, lookup(TOP)),
        door("lookup on the way", 0, lookup(WAY)),
        door("lookup in a mount", 0, lookup(INNER)),
    ]
}

/// A failed walk makes no claim about the tree, because any name may have been missing. Nor does a
/// ref-walk, because it is no snapshot.
pub(crate) fn walk<'a>(tree: &'a Tree<'a>) -> Door<'a> {
    thread_local! {
        static FALLBACKS: Cell<u64> = const { Cell::new(0) };
    }
    let names = [TOP, WAY].map(names_of);
    let ino = tree.way.inode().ino();
    let start = FsStruct { root: tree.root.clone(), cwd: tree.root.clone() };
    door("resolve_path", 0, move |rng, _| {
        let [top, way] = names.each_ref().map(|names| rng.index(names.len()));
        let path = ["/", &names[0][top], &tree.path_of_middle(), "/", &names[1][way]].concat();
        let found =
            tree.vfs.resolve_path(&Cred::root(), &start, path.as_bytes(), WalkFlags::empty());
        let mut seen = [ANY; VARIABLES];
        match found.map(|found| found.ino) {
            Ok(found) if found == ino => {
                let fallbacks = tree.vfs.stats().fallbacks;
                if FALLBACKS.replace(fallbacks) == fallbacks {
                    (seen[TOP], seen[WAY]) = (1 << top, 1 << way);
                }
                Ok(seen)
            }
            Err(Errno::NOENT) => Ok(seen),
            found => Err(format!("{found:?} at {path}")),
        }
    })
}

/// For control tests: asks for each name of a path separately, so the names are of different
/// instants.
pub(crate) fn level_by_level<'a>(tree: &'a Tree<'a>) -> Door<'a> {
    let parts = to_leaf(tree);
    door("level by level", PASSES, move |_, _| {
        let [first, _] = &tree.swapped;
        let levels = [&tree.root, &tree.moved, first, &tree.leaf];
        let path = levels.windows(2).map(|pair| pair[1].path_of(pair[0]).0);
        claim(&parts, &path.collect::<Vec<_>>().concat())
    })
}

/// For control tests: each call returns the path that was right at the call before.
pub(crate) fn one_call_late<'a>(tree: &'a Tree<'a>) -> Door<'a> {
    thread_local! {
        static LATE: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
    }
    let parts = to_leaf(tree);
    door("one call late", PASSES, move |_, _| {
        let path = tree.leaf.path_of(&tree.root).0;
        let late = LATE.replace(Some(path.clone()));
        claim(&parts, &late.unwrap_or(path))
    })
}
