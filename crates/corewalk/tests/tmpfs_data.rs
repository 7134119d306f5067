//! The content of tmpfs files, compared with a model: a vector of bytes, and a state per page.
//!
//! The model works byte by byte and page by page, so it is easy to verify. After every step, the
//! file and the model must agree in bytes, size, blocks, free space, holes and errors. Many offsets
//! are at the edges of pages, or of extents of 64 pages. Space is short, so writes are often short.

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Errno, Fallocate, FileKind, FileSystem, Make, Name, Node, Seek, SetAttr};
use proptest::prelude::*;

const PAGE: usize = 4096;
const PAGES: usize = 400;
const BUDGET: usize = 150;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Page {
    Absent,
    Reserved,
    Present,
}

struct Model {
    bytes: Vec<u8>,
    pages: Vec<Page>,
}

impl Model {
    fn charged(&self) -> usize {
        self.pages.iter().filter(|&&page| page != Page::Absent).count()
    }

    fn write(&mut self, offset: usize, len: usize, byte: u8) -> Result<usize, Errno> {
        let mut done = 0;
        while done < len {
            let at = offset + done;
            if self.pages[at / PAGE] == Page::Absent && self.charged() == BUDGET {
                break;
            }
            self.pages[at / PAGE] = Page::Present;
            let end = (offset + len).min((at / PAGE + 1) * PAGE);
            if self.bytes.len() < end {
                self.bytes.resize(end, 0);
            }
            self.bytes[at..end].fill(byte);
            done = end - offset;
        }
        if done == 0 && len > 0 { Err(Errno::NOSPC) } else { Ok(done) }
    }

    fn truncate(&mut self, size: usize) {
        if size <= self.bytes.len() {
            self.pages[size.div_ceil(PAGE)..].fill(Page::Absent);
        }
        self.bytes.resize(size, 0);
    }

    fn zero(&mut self, start: usize, end: usize) {
        let len = self.bytes.len();
        self.bytes[start.min(len)..end.min(len)].fill(0);
    }

    fn allocate(
        &mut self,
        offset: usize,
        len: usize,
        is_zeroed: bool,
        is_kept: bool,
    ) -> Result<(), Errno> {
        let touched = offset / PAGE..(offset + len).div_ceil(PAGE);
        let missing = self.pages[touched.clone()].iter().filter(|&&p| p == Page::Absent).count();
        if self.charged() + missing > BUDGET {
            return Err(Errno::NOSPC);
        }
        for number in touched {
            let is_whole = number * PAGE >= offset && (number + 1) * PAGE <= offset + len;
            if self.pages[number] == Page::Absent || is_zeroed && is_whole {
                self.pages[number] = Page::Reserved;
            }
        }
        if is_zeroed {
            self.zero(offset, offset + len);
        }
        if !is_kept && self.bytes.len() < offset + len {
            self.bytes.resize(offset + len, 0);
        }
        Ok(())
    }

    fn punch(&mut self, offset: usize, len: usize) {
        self.zero(offset, offset + len);
        for number in offset.div_ceil(PAGE)..(offset + len) / PAGE {
            self.pages[number] = Page::Absent;
        }
    }

    fn collapse(&mut self, offset: usize, len: usize) -> Result<(), Errno> {
        if !offset.is_multiple_of(PAGE)
            || !len.is_multiple_of(PAGE)
            || offset + len >= self.bytes.len()
        {
            return Err(Errno::INVAL);
        }
        self.bytes.drain(offset..offset + len);
        self.pages.drain(offset / PAGE..(offset + len) / PAGE);
        self.pages.resize(PAGES, Page::Absent);
        Ok(())
    }

    fn insert(&mut self, offset: usize, len: usize) -> Result<(), Errno> {
        if !offset.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) || offset >= self.bytes.len() {
            return Err(Errno::INVAL);
        }
        self.bytes.splice(offset..offset, vec![0; len]);
        let (page, count) = (offset / PAGE, len / PAGE);
        self.pages.splice(page..page, vec![Page::Absent; count]);
        self.pages.truncate(PAGES);
        Ok(())
    }

    /// Returns true if the model has space to insert `len` bytes. Reserved pages behind the end of
    /// the file count as used.
    fn has_room_to_insert(&self, len: usize) -> bool {
        let last = &self.pages[PAGES - len.div_ceil(PAGE)..];
        last.iter().all(|&page| page == Page::Absent) && self.bytes.len() + len <= 300 * PAGE
    }

    fn seek(&self, offset: usize, what: Seek) -> Result<u64, Errno> {
        let is_wanted = |page: Page| (page == Page::Present) == (what == Seek::Data);
        let found = (offset..self.bytes.len()).find(|at| is_wanted(self.pages[at / PAGE]));
        match (found, what) {
            (Some(at), _) => Ok(at as u64),
            (None, Seek::Hole) if offset < self.bytes.len() => Ok(self.bytes.len() as u64),
            _ => Err(Errno::NXIO),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Write(usize, usize, u8),
    Truncate(usize),
    CutAgain,
    Allocate(usize, usize, bool, bool),
    Punch(usize, usize),
    Collapse(usize, usize),
    Insert(usize, usize),
    Read(usize, usize),
    Seek(usize),
}

fn offset() -> impl Strategy<Value = usize> {
    prop_oneof![
        0..160 * PAGE,
        (1..160usize, 0..3usize).prop_map(|(page, near)| page * PAGE + near - 1),
        (1..3usize, 0..3usize).prop_map(|(extent, near)| extent * 64 * PAGE + near - 1),
        0..3 * PAGE,
    ]
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![0..3 * PAGE, 1..70 * PAGE, (1..70usize).prop_map(|pages| pages * PAGE)]
}

fn whole() -> impl Strategy<Value = usize> {
    prop_oneof![9 => (0..100usize).prop_map(|pages| pages * PAGE), 1 => 0..100 * PAGE]
}

fn op() -> impl Strategy<Value = Op> {
    let kept = any::<bool>();
    prop_oneof![
        6 => (offset(), len(), any::<u8>()).prop_map(|(o, l, b)| Op::Write(o, l, b)),
        2 => offset().prop_map(Op::Truncate),
        1 => Just(Op::CutAgain),
        2 => (offset(), 1..40 * PAGE, any::<bool>(), kept)
            .prop_map(|(o, l, z, k)| Op::Allocate(o, l, z, k)),
        2 => (offset(), 1..40 * PAGE).prop_map(|(o, l)| Op::Punch(o, l)),
        2 => (whole(), whole()).prop_map(|(o, l)| Op::Collapse(o, l / 4 / PAGE * PAGE + PAGE)),
        1 => (whole(), 1..20usize).prop_map(|(o, pages)| Op::Insert(o, pages * PAGE)),
        1 => (whole(), 1..9000usize).prop_map(|(o, l)| Op::Insert(o, l)),
        2 => (offset(), len()).prop_map(|(o, l)| Op::Read(o, l)),
        2 => offset().prop_map(Op::Seek),
    ]
}

fn new_file(size_bytes: u64) -> (Tmpfs, Node<'static>) {
    let fs = Tmpfs::new(TmpfsOptions::default().with_size_bytes(size_bytes));
    let root = Node::detached(fs.root().unwrap().ino, FileKind::Directory);
    let made = fs.make(root, Name::new(b"f").unwrap(), &Make::new(0o600, 0, 0)).unwrap();
    let file = Node::detached(made.ino, FileKind::Regular);
    (fs, file)
}

fn step(fs: &Tmpfs, file: Node<'_>, model: &mut Model, op: Op) -> Result<(), TestCaseError> {
    let allocate = |offset, len, how| fs.fallocate(file, offset as u64, len as u64, how);
    match op {
        Op::Write(offset, len, byte) => {
            let got = fs.write(file, offset as u64, &vec![byte; len]);
            prop_assert_eq!(got, model.write(offset, len, byte));
        }
        Op::Truncate(size) => {
            let set = SetAttr::default().with_size(size as u64);
            prop_assert_eq!(fs.setattr(file, &set).map(|attr| attr.size), Ok(size as u64));
            model.truncate(size);
        }
        Op::CutAgain => step(fs, file, model, Op::Truncate(model.bytes.len()))?,
        Op::Allocate(offset, len, is_zeroed, is_kept) => {
            let zero = if is_zeroed { Fallocate::ZERO_RANGE } else { Fallocate::empty() };
            let keep = if is_kept { Fallocate::KEEP_SIZE } else { Fallocate::empty() };
            let expected = model.allocate(offset, len, is_zeroed, is_kept);
            prop_assert_eq!(allocate(offset, len, zero | keep), expected);
        }
        Op::Punch(offset, len) => {
            let how = Fallocate::PUNCH_HOLE | Fallocate::KEEP_SIZE;
            prop_assert_eq!(allocate(offset, len, how), Ok(()));
            model.punch(offset, len);
        }
        Op::Collapse(offset, len) => {
            let expected = model.collapse(offset, len);
            prop_assert_eq!(allocate(offset, len, Fallocate::COLLAPSE_RANGE), expected);
        }
        // Skip an insertion for which the model has no space. The file itself could grow further.
        Op::Insert(_, len) if !model.has_room_to_insert(len) => {}
        Op::Insert(offset, len) => {
            let expected = model.insert(offset, len);
            prop_assert_eq!(allocate(offset, len, Fallocate::INSERT_RANGE), expected);
        }
        Op::Read(offset, len) => {
            let mut buf = vec![0xaa; len];
            let count = fs.read(file, offset as u64, &mut buf).unwrap();
            let size = model.bytes.len();
            prop_assert_eq!(
                &buf[..count],
                &model.bytes[offset.min(size)..(offset + len).min(size)]
            );
        }
        Op::Seek(offset) => {
            for what in [Seek::Data, Seek::Hole] {
                let got = fs.seek(file, offset as u64, what);
                prop_assert_eq!(got, model.seek(offset, what), "{:?}", what);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn file_answers_as_a_vector_of_bytes(ops in prop::collection::vec(op(), 1..40)) {
        let (fs, file) = new_file((BUDGET * PAGE) as u64);
        let mut model = Model { bytes: Vec::new(), pages: vec![Page::Absent; PAGES] };
        for op in ops {
            step(&fs, file, &mut model, op)?;
            let attr = fs.getattr(file).unwrap();
            prop_assert_eq!(attr.size, model.bytes.len() as u64);
            prop_assert_eq!(attr.blocks, 8 * model.charged() as u64);
            prop_assert_eq!(fs.statfs().unwrap().bfree, (BUDGET - model.charged()) as u64);
        }
        let mut buf = vec![0xaa; model.bytes.len() + 10];
        prop_assert_eq!(fs.read(file, 0, &mut buf), Ok(model.bytes.len()));
        prop_assert!(buf[..model.bytes.len()] == model.bytes);
        for page in 0..=model.bytes.len() / PAGE {
            step(&fs, file, &mut model, Op::Seek(page * PAGE))?;
        }
    }
}

#[test]
fn concurrent_writers_never_exceed_the_budget() {
    let (fs, first) = new_file((BUDGET * PAGE) as u64);
    let root = Node::detached(fs.root().unwrap().ino, FileKind::Directory);
    let seed = corewalk_testkit::rng::Seed::choose();
    let taken = corewalk_testkit::race::run(4, seed, |mut racer| {
        let name = [b'a' + racer.thread as u8];
        let made = fs.make(root, Name::new(&name).unwrap(), &Make::new(0o600, 0, 0)).unwrap();
        let file = Node::detached(made.ino, FileKind::Regular);
        for _ in 0..2_000 {
            let offset = racer.rng.below(100 * PAGE as u64);
            let bytes = vec![1; racer.rng.index(5 * PAGE)];
            let written = fs.write(file, offset, &bytes);
            assert!(written.is_ok() || written == Err(Errno::NOSPC), "{written:?}");
            // The reservations of the first file compete for the same space.
            let how = Fallocate::PUNCH_HOLE | Fallocate::KEEP_SIZE;
            if racer.rng.chance(1, 3) {
                fs.fallocate(file, racer.rng.below(1 << 18), 1 << 17, how).unwrap();
            }
            let _ = fs.fallocate(first, offset, 8 * PAGE as u64, Fallocate::KEEP_SIZE);
            fs.fallocate(first, offset, 8 * PAGE as u64, how).unwrap();
        }
        fs.getattr(file).unwrap().blocks / 8
    });
    let first = fs.getattr(first).unwrap().blocks / 8;
    let stat = fs.statfs().unwrap();
    assert_eq!(stat.blocks - stat.bfree, taken.iter().sum::<u64>() + first, "{seed}");
}

#[test]
fn readers_see_whole_writes() {
    let (fs, file) = new_file(1 << 20);
    let len = 3 * PAGE;
    fs.write(file, 100, &vec![1; len]).unwrap();
    let seed = corewalk_testkit::rng::Seed::choose();
    corewalk_testkit::race::run(4, seed, |racer| {
        for round in 0..500 {
            if racer.thread == 0 {
                fs.write(file, 100, &vec![round as u8; len]).unwrap();
            } else {
                let mut buf = vec![0; len];
                assert_eq!(fs.read(file, 100, &mut buf), Ok(len));
                assert!(buf.iter().all(|&byte| byte == buf[0]), "a write was seen in part");
            }
        }
    });
}
