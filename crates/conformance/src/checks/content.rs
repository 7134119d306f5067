//! Checks of the bytes of files.

use corewalk::{Fsync, InodeRef, RenameMode};

use super::tree::pattern;
use crate::answer::{Answer, Checked, ensure_bytes, ensure_eq};
use crate::bench::Bench;

const STEPS: usize = 400;
const SIZE_MAX: usize = 300_000;

pub(super) fn random(bench: &Bench) -> Checked {
    let file = bench.file(&bench.root(), "f", b"")?;
    let (mut open, mut model, mut rng) =
        (bench.open(&file)?, Vec::<u8>::new(), bench.settings.rng(1));
    for step in 0..STEPS {
        let at = rng.usize(..SIZE_MAX);
        let len = [1, 13, 512, 4096, 4097, 30_000][rng.usize(..6)];
        let bytes = pattern(step as u64 + 1, len);
        let place = |stop: crate::answer::Stop| stop.at(&format!("step {step}"));
        match rng.u32(..8) {
            0 | 1 => {
                open.write(at as u64, &bytes).map_err(place)?;
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&bytes);
            }
            2 if model.len() < 2 * SIZE_MAX => {
                open.append(model.len() as u64, &bytes).map_err(place)?;
                model.extend_from_slice(&bytes);
            }
            3 | 4 => {
                bench.truncate(&file, at as u64).map_err(place)?;
                model.resize(at, 0);
            }
            5 if step % 3 == 0 => {
                drop(open);
                bench.cool();
                open = bench.open(&file)?;
                ensure_bytes("the whole file", &open.read_all()?, &model).map_err(place)?;
            }
            _ => {
                let found = open.read(at as u64, len).map_err(place)?;
                let wanted = &model[at.min(model.len())..(at + len).min(model.len())];
                ensure_bytes(&format!("a read at {at}"), &found, wanted).map_err(place)?;
            }
        }
        ensure_eq("the size", bench.attr(&file)?.size, model.len() as u64).map_err(place)?;
    }
    drop((open, file));
    bench.has_content(&bench.root(), "f", &model)
}

pub(super) fn holes(bench: &Bench) -> Checked {
    let root = bench.root();
    let file = bench.file(&root, "f", b"")?;
    let open = bench.open(&file)?;
    let mut model = Vec::new();
    for (number, at) in [1_048_583, 4095, 70_000, 300_001].into_iter().enumerate() {
        let bytes = pattern(number as u64, 5_000);
        open.write(at as u64, &bytes)?;
        model.resize(model.len().max(at + bytes.len()), 0);
        model[at..at + bytes.len()].copy_from_slice(&bytes);
        ensure_eq("the size", bench.attr(&file)?.size, model.len() as u64)?;
        ensure_bytes("the file with holes", &open.read_all()?, &model)?;
    }
    drop((open, file));
    bench.has_content(&root, "f", &model)
}

pub(super) fn truncate(bench: &Bench) -> Checked {
    let root = bench.root();
    for (number, (full, cut, end)) in [
        (10_000, 100, 20_000),
        (10_000, 4096, 8192),
        (70_001, 4097, 70_001),
        (5_000, 0, 5_000),
        (100, 100, 101),
    ]
    .into_iter()
    .enumerate()
    {
        let text = format!("f{number}");
        let content = pattern(number as u64, full);
        let file = bench.file(&root, &text, &content)?;
        let place = |stop: crate::answer::Stop| stop.at(&format!("{full} bytes cut to {cut}"));
        cut_and_extend(bench, &file, &content, cut, end).map_err(place)?;
        drop(file);
        let wanted = [&content[..cut], &vec![0; end - cut], b"behind"].concat();
        bench.has_content(&root, &text, &wanted).map_err(place)?;
    }
    Ok(())
}

fn cut_and_extend(
    bench: &Bench,
    file: &InodeRef<'_>,
    content: &[u8],
    cut: usize,
    end: usize,
) -> Checked {
    let open = bench.open(file)?;
    let zeros = vec![0; end - cut];
    let cut_off = || {
        open.write(0, content)?;
        bench.truncate(file, cut as u64)?;
        ensure_bytes("the file after the cut", &open.read_all()?, &content[..cut])
    };
    cut_off()?;
    bench.truncate(file, end as u64)?;
    let wanted = [&content[..cut], &zeros].concat();
    ensure_bytes("the file extended by its size", &open.read_all()?, &wanted)?;
    cut_off()?;
    open.write(end as u64, b"behind")?;
    let wanted = [&content[..cut], &zeros, b"behind"].concat();
    ensure_bytes("the file after a write behind the cut", &open.read_all()?, &wanted)
}

pub(super) fn append(bench: &Bench) -> Checked {
    let root = bench.root();
    let file = bench.file(&root, "f", b"")?;
    let (open, mut model) = (bench.open(&file)?, Vec::new());
    for number in 0..20 {
        let bytes = pattern(number, 100 + 613 * number as usize);
        open.append(model.len() as u64, &bytes)?;
        model.extend_from_slice(&bytes);
        ensure_eq("the size after an append", bench.attr(&file)?.size, model.len() as u64)?;
    }
    bench.truncate(&file, 10)?;
    open.append(10, b"after the cut")?;
    model.truncate(10);
    model.extend_from_slice(b"after the cut");
    drop((open, file));
    bench.has_content(&root, "f", &model)
}

const HANDLES: usize = 24;

pub(super) fn opened(bench: &Bench) -> Checked {
    let root = bench.root();
    let dir = bench.dir(&root, "dir")?;
    let content = pattern(3, 6_000);
    let file = bench.file(&root, "f", &content)?;
    let handles = (0..HANDLES).map(|_| bench.open(&file)).collect::<Checked<Vec<_>>>()?;
    let same = |what: &str, content: &[u8]| -> Checked {
        let mut all = handles.iter();
        all.try_for_each(|open| ensure_bytes(what, &open.read_all()?, content))
    };
    same("the open file", &content)?;
    bench.rename((&root, "f"), (&dir, "g"), RenameMode::Replace).needs("rename")?;
    same("the open file after its rename", &content)?;
    bench.rename((&root, "dir"), (&root, "moved"), RenameMode::Replace).must("rename")?;
    // The open file was renamed from `f`. A new file `f` must not change it.
    bench.file(&root, "f", b"another")?;
    same("the open file after a rename of its directory", &content)?;
    handles[0].write(0, b"written")?;
    let changed = [b"written", &content[7..]].concat();
    same("the open file after a write through one handle", &changed)?;
    drop(handles);
    drop(file);
    bench.has_content(&dir, "g", &changed)?;
    bench.has_content(&root, "f", b"another")
}

pub(super) fn fsync(bench: &Bench) -> Checked {
    let root = bench.root();
    let dir = bench.dir(&root, "dir")?;
    let content = pattern(4, 20_000);
    let file = bench.file(&dir, "f", &content)?;
    let open = bench.open(&file)?;
    for what in [Fsync::Data, Fsync::All] {
        bench.vfs.fsync(&file, open.handle(), what).must("fsync of a file")?;
    }
    bench.vfs.fsync(&dir, 0, Fsync::All).must("fsync of a directory")?;
    bench.unlink(&dir, "f").must("remove")?;
    bench.vfs.fsync(&file, open.handle(), Fsync::All).must("fsync of a removed file")?;
    ensure_bytes("the removed file after fsync", &open.read_all()?, &content)
}
