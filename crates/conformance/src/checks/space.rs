//! Checks of allocated space: `blocks`, `fallocate` and `seek`.

use corewalk::{Errno, Fallocate, InodeRef, Seek};

use super::tree::pattern;
use crate::answer::{Answer, Checked, Stop, ensure, ensure_bytes, ensure_eq, is_unsupported};
use crate::bench::{Bench, OpenFile};

/// Maximum number of bytes of disk space that a file may use beyond twice its size. This margin
/// allows for preallocation and for the rest of a large block.
const BESIDE_BYTES: u64 = 16 << 20;
/// Ranges for fallocate(2) are multiples of this number of bytes, which is a multiple of each usual
/// block size.
const UNIT: u64 = 64 << 10;

pub(super) fn blocks(bench: &Bench) -> Checked {
    let file = bench.file(&bench.root(), "f", b"")?;
    let open = bench.open(&file)?;
    let fits = || -> Checked {
        let attr = bench.attr(&file)?;
        let used = attr.blocks.saturating_mul(512);
        ensure(used <= 2 * attr.size + BESIDE_BYTES, || {
            format!("{} blocks of 512 bytes for {} bytes", attr.blocks, attr.size)
        })
    };
    fits()?;
    let content = pattern(1, 300_000);
    open.write(0, &content)?;
    fits()?;
    ensure_eq("the size", bench.attr(&file)?.size, 300_000)?;
    bench.truncate(&file, 0)?;
    fits()?;
    ensure_eq("the size of a file cut to nothing", bench.attr(&file)?.size, 0)
}

struct Modelled<'b> {
    bench: &'b Bench,
    file: InodeRef<'b>,
    open: OpenFile<'b>,
    model: Vec<u8>,
}

impl Modelled<'_> {
    fn allocate(&self, at: u64, len: u64, how: Fallocate) -> Checked<bool> {
        let Modelled { bench, file, open, .. } = self;
        match bench.vfs.fallocate(&bench.cred, file, open.handle(), at, len, how) {
            Err(error) if is_unsupported(error) => Ok(false),
            Err(Errno::INVAL) if how.intersects(SHIFTS) => Ok(false),
            answer => {
                answer.must(&format!("fallocate of {len} bytes at {at} ({how:?})")).map(|()| true)
            }
        }
    }

    fn is_equal(&self, after: &str) -> Checked {
        let size = self.bench.attr(&self.file)?.size;
        ensure_eq(&format!("the size after {after}"), size, self.model.len() as u64)?;
        ensure_bytes(&format!("the file after {after}"), &self.open.read_all()?, &self.model)
    }
}

/// These modes move the bytes behind a range. A file system may refuse them with `EINVAL` if the
/// range does not fit its blocks.
const SHIFTS: Fallocate = Fallocate::COLLAPSE_RANGE.union(Fallocate::INSERT_RANGE);

pub(super) fn fallocate(bench: &Bench) -> Checked {
    let model = pattern(1, 6 * UNIT as usize);
    let file = bench.file(&bench.root(), "f", &model)?;
    let open = bench.open(&file)?;
    let mut modelled = Modelled { bench, file, open, model };
    let (unit, size) = (UNIT as usize, 6 * UNIT);
    if !modelled.allocate(size - 10, 1010, Fallocate::empty())? {
        return Stop::skipped("the back end has no fallocate");
    }
    modelled.model.resize(size as usize + 1000, 0);
    modelled.is_equal("an allocation over the end")?;
    modelled.allocate(100, 10_000, Fallocate::empty())?;
    modelled.is_equal("an allocation of bytes that are there")?;
    if modelled.allocate(2 * size, UNIT, Fallocate::KEEP_SIZE)? {
        modelled.is_equal("an allocation behind the end that keeps the size")?;
    }
    if modelled.allocate(UNIT - 7, UNIT, Fallocate::PUNCH_HOLE | Fallocate::KEEP_SIZE)? {
        modelled.model[unit - 7..2 * unit - 7].fill(0);
        modelled.is_equal("a hole")?;
    }
    if modelled.allocate(3 * UNIT + 5, 5_000, Fallocate::ZERO_RANGE)? {
        modelled.model[3 * unit + 5..3 * unit + 5_005].fill(0);
        modelled.is_equal("a range of zeros")?;
    }
    if modelled.allocate(UNIT, UNIT, Fallocate::COLLAPSE_RANGE)? {
        modelled.model.drain(unit..2 * unit);
        modelled.is_equal("the removal of a range")?;
    }
    if modelled.allocate(2 * UNIT, UNIT, Fallocate::INSERT_RANGE)? {
        modelled.model.splice(2 * unit..2 * unit, vec![0; unit]);
        modelled.is_equal("the insertion of a range")?;
    }
    Ok(())
}

pub(super) fn seek(bench: &Bench) -> Checked {
    let file = bench.file(&bench.root(), "f", b"")?;
    let open = bench.open(&file)?;
    let bytes = pattern(1, 5_000);
    let places = [0, 700_000, 2_000_000];
    places.into_iter().try_for_each(|at| open.write(at, &bytes))?;
    let content = open.read_all()?;
    let size = content.len() as u64;
    let find = |at: u64, what: Seek| bench.vfs.seek(&file, open.handle(), at, what);
    for at in [size, size + 1, 1 << 40] {
        for what in [Seek::Data, Seek::Hole] {
            let call = format!("seek to {what:?} from {at} of {size}");
            find(at, what).must_fail(&call, &[Errno::NXIO])?;
        }
    }
    for at in [0, 1, 4_999, 5_000, 300_000, 699_999, 700_001, 1_000_000, 2_000_000, size - 1] {
        let call = |what: Seek| format!("seek to {what:?} from {at} of {size}");
        let data = match find(at, Seek::Data) {
            Err(Errno::NXIO) => size,
            found => found.must(&call(Seek::Data))?,
        };
        ensure((at..=size).contains(&data), || format!("{}: {data}", call(Seek::Data)))?;
        let passed = &content[at as usize..data as usize];
        ensure(passed.iter().all(|byte| *byte == 0), || {
            format!("{}: {data}, but there is data before it", call(Seek::Data))
        })?;
        let hole = find(at, Seek::Hole).must(&call(Seek::Hole))?;
        ensure((at..=size).contains(&hole), || format!("{}: {hole}", call(Seek::Hole)))?;
        // The file's pattern contains no byte 0, so a byte 0 belongs to a hole.
        ensure(hole == size || content[hole as usize] == 0, || {
            format!("{}: {hole}, where there is data", call(Seek::Hole))
        })?;
    }
    Ok(())
}
