//! Tests of the log reader with randomly changed logs. The reader must not panic, find an entry
//! that was never written, or lose an undamaged one.
//!
//! Each test writes logs of three generations and damages the middle one. It changes bits, blocks
//! and the length, and copies blocks and end marks from the other two logs. An end mark is a header
//! that says that a log is empty.
//!
//! The test finds undamaged entries by comparing bytes, without the code of the reader. From these
//! entries it computes the result that the reader must have.
//!
//! Some tests damage a log with end marks, which a closed store has, or make one of its blocks
//! unreadable. The reader may accept an unreadable block only if an intact end mark is left.
//! Otherwise the block may have held an entry.

use std::io;
use std::sync::Arc;

use corewalk_base::Mutex;
use corewalk_testkit::rng::{Rng, Seed};

use super::replay::look;
use super::*;
use crate::record::{FORMAT_VERSION, Kind};
use crate::store_dir::OpenError;

const LOGS: u64 = 8;
const MUTATIONS: usize = 4_000;
const LOG_BYTES: usize = 96 << 10;
const SEED: u64 = 0x5EED;
const GENERATION: u64 = 7;

#[derive(Debug, Default)]
struct Bytes(Mutex<Vec<u8>>, Option<usize>);

impl Device for Bytes {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let (first, last) = (offset as usize, offset as usize + buf.len().max(1) - 1);
        if self.1.is_some_and(|bad| (first / BLOCK_BYTES..=last / BLOCK_BYTES).contains(&bad)) {
            return Err(io::ErrorKind::Other.into());
        }
        let bytes = self.0.lock();
        let from = bytes.get(offset as usize..offset as usize + buf.len());
        buf.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, new: &[u8]) -> io::Result<()> {
        self.0.lock()[offset as usize..][..new.len()].copy_from_slice(new);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.lock().resize(len as usize, 0);
        Ok(())
    }

    fn reserve(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

fn superblock(generation: u64) -> SuperRecord {
    SuperRecord { version: FORMAT_VERSION, seed: SEED, generation, log_bytes: 0 }
}

struct Written {
    at: usize,
    generation: u64,
    number: u64,
    bytes: Vec<u8>,
}

fn log(generation: u64, rng: &mut Rng) -> (Vec<u8>, Vec<Written>) {
    let device = Arc::new(Bytes::default());
    let mut log = Log::new(device.clone(), superblock(generation), LOG_BYTES as u64);
    let mut written = Vec::new();
    for number in 0.. {
        let at = log.end as usize;
        let mut entry = log.begin();
        for _ in 0..rng.below(4) {
            let value = vec![rng.next_u64() as u8; rng.index(300)];
            let record = rng.chance(2, 3).then(|| value.into());
            entry.put(&Key::at(Kind::Name, rng.below(9), rng.next_u64()), &record);
        }
        for _ in 0..rng.below(3) {
            let len = rng.index(9_000) as u32;
            let byte = rng.next_u64() as u8;
            let offset = rng.below(1 << 30);
            let filled: io::Result<()> = entry.put_data(offset, len, |bytes| {
                bytes.fill(byte);
                Ok(())
            });
            filled.unwrap();
        }
        let len = entry.log.buffer.len();
        if entry.append().unwrap().is_none() {
            break;
        }
        let bytes = device.0.lock()[at..at + len].to_vec();
        written.push(Written { at, generation, number, bytes });
    }
    let bytes = device.0.lock().clone();
    (bytes, written)
}

fn mark(generation: u64) -> Vec<u8> {
    let device = Arc::new(Bytes::default());
    Log::new(device.clone(), superblock(generation), LOG_BYTES as u64).end();
    let bytes = device.0.lock();
    assert!(bytes[..BLOCK_BYTES] == bytes[BLOCK_BYTES..MARKED_BYTES], "each block has a mark");
    bytes[..BLOCK_BYTES].to_vec()
}

struct Known {
    logs: [Vec<u8>; 3],
    marks: [Vec<u8>; 3],
    written: Vec<Written>,
}

impl Known {
    fn new(rng: &mut Rng) -> Known {
        let mut written = Vec::new();
        let generations = [GENERATION - 1, GENERATION, GENERATION + 1];
        let logs = generations.map(|generation| {
            let (bytes, entries) = log(generation, rng);
            written.extend(entries);
            bytes
        });
        let marks = generations.map(|generation| {
            let bytes = mark(generation);
            let header = bytes[..HEADER_BYTES].to_vec();
            written.push(Written { at: 0, generation, number: END, bytes: header });
            bytes
        });
        Known { logs, marks, written }
    }

    fn closed(&self) -> Vec<u8> {
        let mut log = self.logs[0].clone();
        log[..MARKED_BYTES].copy_from_slice(&self.marks[1].repeat(MARKED_BYTES / BLOCK_BYTES));
        log
    }

    fn all(&self) -> Vec<&Written> {
        let is_of = |entry: &&Written| entry.generation == GENERATION && entry.number != END;
        self.written.iter().filter(is_of).collect()
    }

    fn find(&self, log: &[u8], at: usize) -> Option<(u64, u64)> {
        let rest = log.get(at..)?;
        let is_there =
            |entry: &&Written| entry.generation >= GENERATION && rest.starts_with(&entry.bytes);
        self.written.iter().find(is_there).map(|entry| (entry.generation, entry.number))
    }

    fn expect(&self, log: &[u8]) -> Said {
        let (mut at, mut number) = (0, 0);
        while self.find(log, at) == Some((GENERATION, number)) {
            let is_this =
                |entry: &&Written| (entry.generation, entry.number) == (GENERATION, number);
            let entry = self.written.iter().find(is_this).unwrap();
            at += entry.bytes.len().next_multiple_of(BLOCK_BYTES);
            number += 1;
        }
        let mut damaged = None;
        for (behind, place) in (0..).zip((at..log.len()).step_by(BLOCK_BYTES)) {
            match self.find(log, place) {
                Some((generation, _)) if generation > GENERATION => {
                    return Said::Behind(place as u64);
                }
                Some((_, later)) if (number + 1..=number + behind).contains(&later) => {
                    damaged.get_or_insert(Said::Damaged(at as u64, place as u64));
                }
                _ => {}
            }
        }
        damaged.unwrap_or(Said::Entries(number))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Entries(u64),
    Damaged(u64, u64),
    Behind(u64),
}

fn say(log: Vec<u8>) -> Said {
    match look(&Bytes(Mutex::new(log), None), superblock(GENERATION)) {
        Ok(contents) => Said::Entries(contents.entries),
        Err(OpenError::LogDamaged { at, later, .. }) => Said::Damaged(at, later),
        Err(OpenError::DatabaseBehind { at, .. }) => Said::Behind(at),
        Err(other) => panic!("{other:?}"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mounted {
    Entries(u64),
    Ended,
    NoRead,
    Damaged,
    Behind,
}

/// Reads `log` as a mount does whose database has the generation `generation`. `bad` is the number
/// of an unreadable block.
fn mounted(log: &[u8], bad: Option<usize>, generation: u64) -> Mounted {
    let device = Bytes(Mutex::new(log.to_vec()), bad);
    match look(&device, superblock(generation)) {
        Ok(contents) if contents.is_unreadable => Mounted::Ended,
        Ok(contents) => Mounted::Entries(contents.entries),
        Err(OpenError::LogRead { .. }) => Mounted::NoRead,
        Err(OpenError::LogDamaged { .. }) => Mounted::Damaged,
        Err(OpenError::DatabaseBehind { .. }) => Mounted::Behind,
        Err(other) => panic!("{other:?}"),
    }
}

fn mutate(log: &mut Vec<u8>, known: &Known, rng: &mut Rng) {
    if log.is_empty() {
        return;
    }
    let at = rng.index(log.len());
    let (block, other) = (at / BLOCK_BYTES * BLOCK_BYTES, rng.index(log.len()));
    let other = other / BLOCK_BYTES * BLOCK_BYTES;
    let blocks = BLOCK_BYTES * (1 + rng.index(5));
    let len = blocks.min(log.len() - block.max(other));
    // Most bytes of a log are file data, so change headers more often than a uniform choice would.
    let in_header = (block + rng.index(HEADER_BYTES)).min(log.len() - 1);
    match rng.below(12) {
        0 => log[at] ^= 1 << rng.below(8),
        1 => log[in_header] ^= 1 << rng.below(8),
        2 => log[in_header] = *rng.pick(&[0, 1, 0x7F, 0xFF]),
        3 => log[block..block + len].fill(*rng.pick(&[0, 0xFF])),
        4 => log.truncate(at),
        5 => log.truncate(block),
        6 => log.resize(log.len() + blocks, 0),
        7 => log.copy_within(other..other + len, block),
        8 => {
            let word = block + 8 * rng.index(4);
            if let Some(bytes) = log.get_mut(word..word + 8) {
                let value = *rng.pick(&[u64::MAX, u64::MAX - 31, 1 << 63, 1 << 20, GENERATION + 1]);
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        9 => {
            let mark = &known.marks[*rng.pick(&[0, 1, 1, 1, 2])];
            let len = mark.len().min(log.len() - block);
            log[block..block + len].copy_from_slice(&mark[..len]);
        }
        _ => {
            let from = &known.logs[*rng.pick(&[0, 0, 0, 1, 1, 2])];
            let start = if rng.chance(3, 4) { block } else { other };
            let len = len.min(from.len().saturating_sub(start));
            if let Some(source) = from.get(start..start + len) {
                log[block..block + len].copy_from_slice(source);
            }
        }
    }
}

#[test]
fn log_that_is_changed_at_random_is_read_as_far_as_it_is_whole_or_refused() {
    let mut seen = [0_u32; 4];
    for seed in 0..LOGS {
        let mut rng = Rng::new(Seed(seed));
        let known = Known::new(&mut rng);
        let all = known.all();
        assert_eq!(say(known.logs[1].clone()), Said::Entries(all.len() as u64), "the control");
        assert!(all.len() > 5);
        for number in 0..MUTATIONS {
            let mut log = known.logs[1].clone();
            for _ in 0..1 + rng.below(4) {
                mutate(&mut log, &known, &mut rng);
            }
            let said = say(log.clone());
            assert_eq!(said, known.expect(&log), "seed {seed}, mutation {number}");
            let is_whole = |entry: &&&Written| {
                log.get(entry.at..).is_some_and(|rest| rest.starts_with(&entry.bytes))
            };
            let last = all.iter().rfind(is_whole).map_or(0, |entry| entry.number + 1);
            match said {
                Said::Entries(entries) => {
                    assert!(entries >= last, "seed {seed}, mutation {number}");
                    seen[usize::from(entries == all.len() as u64)] += 1;
                }
                Said::Damaged(..) => seen[2] += 1,
                Said::Behind(_) => seen[3] += 1,
            }
        }
    }
    println!("{seen:?}");
    assert!(seen.iter().all(|&count| count > 500), "{seen:?}");
}

/// An unreadable block may have held a confirmed entry. So a mount may accept it only if an end
/// mark is left.
#[test]
fn log_that_cannot_be_read_in_full_is_refused_unless_an_end_mark_says_that_it_has_nothing() {
    let mut seen = [0_u32; 3];
    for seed in 0..LOGS {
        let mut rng = Rng::new(Seed(seed));
        let known = Known::new(&mut rng);
        for number in 0..MUTATIONS {
            let mut log = if rng.chance(1, 2) { known.logs[1].clone() } else { known.closed() };
            for _ in 0..rng.below(4) {
                mutate(&mut log, &known, &mut rng);
            }
            if log.is_empty() {
                continue;
            }
            let bad = rng.index(log.len().div_ceil(BLOCK_BYTES));
            let mut whole = Vec::new();
            for at in (0..log.len()).step_by(BLOCK_BYTES) {
                let Some((generation, number)) = known.find(&log, at) else { continue };
                let is_this =
                    |entry: &&Written| (entry.generation, entry.number) == (generation, number);
                let len = known.written.iter().find(is_this).unwrap().bytes.len();
                let blocks = at / BLOCK_BYTES..=(at + len - 1) / BLOCK_BYTES;
                if !blocks.contains(&bad) {
                    whole.push((at, generation, number));
                }
            }
            let is_behind = whole.iter().any(|&(_, generation, _)| generation > GENERATION);
            let is_begun = whole.iter().any(|&(.., number)| number != END);
            let is_marked = whole.iter().any(|&(at, _, number)| number == END && at < MARKED_BYTES);
            let is_read = bad * BLOCK_BYTES + HEADER_BYTES <= log.len();
            let expected = match (is_behind, is_marked && !is_begun) {
                (true, _) => Mounted::Behind,
                (false, true) => Mounted::Ended,
                (false, false) => Mounted::NoRead,
            };
            let said = mounted(&log, Some(bad), GENERATION);
            assert!(said == expected || !is_read, "seed {seed}, mutation {number}: {said:?}");
            seen[usize::from(is_behind) + 2 * usize::from(said == Mounted::Ended)] += 1;
        }
    }
    println!("{seen:?}");
    assert!(seen.iter().all(|&count| count > 500), "{seen:?}");
}

/// The log of a closed store has no entries, whichever byte of its end marks is damaged. One
/// readable mark must also be enough to refuse an older database.
#[test]
fn byte_of_an_end_mark_that_is_changed_loses_nothing() {
    let known = Known::new(&mut Rng::new(Seed(1)));
    let closed = known.closed();
    let last = closed.len() / BLOCK_BYTES - 1;
    let bad_blocks = [None, Some(0), Some(1), Some(2), Some(last)];
    let check = |log: &[u8], what: &str| {
        for bad in bad_blocks.into_iter().filter(|bad| bad.is_none_or(|bad| bad <= last)) {
            let is_left = |nth: usize| {
                let block = log.get(nth * BLOCK_BYTES..).unwrap_or(&[]);
                block.starts_with(&known.marks[1][..HEADER_BYTES]) && bad != Some(nth)
            };
            let is_read = bad.is_none_or(|bad| bad * BLOCK_BYTES + HEADER_BYTES > log.len());
            let marks = [0, 1].into_iter().filter(|&nth| is_left(nth)).count();
            let (now, before) = match (marks, is_read) {
                (0, true) => (Mounted::Entries(0), None),
                (_, true) => (Mounted::Entries(0), Some(Mounted::Behind)),
                (0, false) => (Mounted::NoRead, Some(Mounted::NoRead)),
                (_, false) => (Mounted::Ended, Some(Mounted::Behind)),
            };
            assert_eq!(mounted(log, bad, GENERATION), now, "{what}, {bad:?}");
            let older = mounted(log, bad, GENERATION - 1);
            // Without a readable end mark, the reader may miss that the database is older than the
            // log.
            let is_said = before.map_or(older != Mounted::Ended, |before| older == before);
            assert!(is_said, "{what}, {bad:?}, with the older database: {older:?}");
        }
    };
    check(&closed, "whole");
    for at in 0..MARKED_BYTES {
        for bit in 0..8 {
            let mut log = closed.clone();
            log[at] ^= 1 << bit;
            if at % BLOCK_BYTES < HEADER_BYTES || bit == at % 8 {
                check(&log, &format!("bit {bit} of byte {at}"));
            }
        }
    }
    let lens = (0..MARKED_BYTES + HEADER_BYTES).chain((MARKED_BYTES..closed.len()).step_by(512));
    lens.for_each(|len| check(&closed[..len], &format!("{len} bytes")));
}

/// The first log entry after a mount overwrites both end marks. A reader must never take such a log
/// for that of a closed store.
#[test]
fn log_that_is_in_use_again_is_never_taken_for_a_closed_one() {
    let known = Known::new(&mut Rng::new(Seed(1)));
    let closed = known.closed();
    let (log, first) = (&known.logs[1], known.all()[0]);
    let blocks = log.len() / BLOCK_BYTES;
    for at in (0..4 * BLOCK_BYTES).filter(|at| at % BLOCK_BYTES < 2 * HEADER_BYTES) {
        for bit in 0..8 {
            let mut log = log.clone();
            log[at] ^= 1 << bit;
            for bad in [0, 1, 2, blocks / 2, blocks - 1] {
                let said = mounted(&log, Some(bad), GENERATION);
                assert_eq!(said, Mounted::NoRead, "bit {bit} of byte {at}, block {bad}");
            }
        }
    }
    let device = Arc::new(Bytes(Mutex::new(closed.clone()), None));
    let mut again = Log::new(device.clone(), superblock(GENERATION), LOG_BYTES as u64);
    assert_eq!(again.begin().append().unwrap(), Some(BLOCK_BYTES as u64));
    let again = device.0.lock().clone();
    for bad in 0..blocks {
        assert_eq!(mounted(&again, Some(bad), GENERATION), Mounted::NoRead, "block {bad}");
    }
    // A torn first entry was never confirmed, so the reader may ignore it.
    let len = first.bytes.len().max(MARKED_BYTES);
    for torn in (0..len).step_by(512) {
        let mut left = closed.clone();
        left[..torn].copy_from_slice(&log[..torn]);
        let said = mounted(&left, None, GENERATION);
        let is_whole = left.starts_with(&first.bytes);
        assert_eq!(said, Mounted::Entries(u64::from(is_whole)), "{torn} bytes");
        for bad in 0..blocks {
            let said = mounted(&left, Some(bad), GENERATION);
            assert!(matches!(said, Mounted::NoRead | Mounted::Ended), "{torn} bytes: {said:?}");
            let is_seen = is_whole && bad * BLOCK_BYTES >= first.bytes.len();
            assert!(said == Mounted::NoRead || !is_seen, "{torn} bytes, block {bad}");
        }
    }
}

#[test]
fn entries_that_are_whole_and_have_anything_in_them_are_read_or_refused() {
    let mut seen = [0_u32; 2];
    for seed in 0..LOGS {
        let mut rng = Rng::new(Seed(seed));
        let known = Known::new(&mut rng);
        let mut all = known.all();
        all.retain(|entry| entry.bytes.len() > HEADER_BYTES);
        for _ in 0..MUTATIONS / 4 {
            let mut payload = rng.pick(&all).bytes[HEADER_BYTES..].to_vec();
            for _ in 0..1 + rng.below(3) {
                let at = rng.index(payload.len().min(40));
                payload[at] = *rng.pick(&[0, VALUE, REMOVED, DATA, 4, 0x7F, 0xFF]);
            }
            if rng.chance(1, 4) {
                payload.truncate(rng.index(payload.len()));
            }
            let device = Arc::new(Bytes::default());
            let mut log = Log::new(device.clone(), superblock(GENERATION), LOG_BYTES as u64);
            let entry = log.begin();
            entry.log.buffer.extend_from_slice(&payload);
            assert!(entry.append().unwrap().is_some());
            match look(&*device, superblock(GENERATION)).map(|contents| contents.entries) {
                Ok(1) => seen[0] += 1,
                Err(OpenError::LogUnreadable { at: 0 }) => seen[1] += 1,
                other => panic!("seed {seed}: {other:?}"),
            }
        }
    }
    println!("{seen:?}");
    assert!(seen.iter().all(|&count| count > 500), "{seen:?}");
}
