//! Tests of the replay of a log by a mount: the memory that the replay takes, and crashes during
//! the replay.

use corewalk::{FileKind, FileSystem, Make, Name, Node};
use corewalk_store::{StoreOptions, fsck_devices};
use corewalk_testkit::rng::{Rng, Seed};

use crate::crash_points::crash;
use crate::differential::{Tree, tree};
use crate::memory::{Disks, Step, quiet};

const META: usize = 0;
const DATA: usize = 1;
const LOG: usize = 3;
const CRASHES: u64 = 6;

/// Makes a store, and simulates a crash that lost all unsynced writes. So the file data is only in
/// the log. Returns the content of the devices and the expected tree.
fn killed(files: usize, options: &StoreOptions) -> ([Vec<u8>; 4], Tree) {
    let disks = Disks::new();
    let store = disks.open(options);
    let root = Node::detached(1, FileKind::Directory);
    for number in 0..files {
        let name = format!("f{}", number % 40);
        let name = Name::new(name.as_bytes()).unwrap();
        let ino = match store.lookup(root, name) {
            Ok(found) => found.ino,
            Err(_) => store.make(root, name, &Make::new(0o644, 0, 0)).unwrap().ino,
        };
        let file = Node::detached(ino, FileKind::Regular);
        store.write(file, 0, &vec![1 + number as u8 % 250; 1 + number * 997 % 20_000]).unwrap();
        store.fsync(file, false).unwrap();
    }
    let stats = store.stats();
    assert_eq!((stats.logged_commits, stats.commits), (files as u64, files as u64));
    let mut contents = disks.contents();
    contents[DATA].fill(0);
    (contents, tree(&store))
}

#[test]
fn log_is_read_in_pieces() {
    const LOG_BYTES: u64 = 8 << 20;
    let options = quiet().with_log_bytes(LOG_BYTES);
    let (contents, expected) = killed(400, &options);
    let used = contents[LOG].iter().rposition(|&byte| byte != 0).unwrap();
    assert!(used > 4 << 20, "{used} bytes of the log");
    let disks = Disks::with(contents);
    let store = disks.open(&options);
    assert_eq!(tree(&store), expected);
    let largest = disks.shared.lock().largest_reads[LOG];
    assert!(largest > 20_000 && largest <= 1 << 20, "{largest} bytes in one read");
}

fn try_points(change: impl Fn(&mut Vec<Step>)) -> Option<String> {
    let (contents, expected) = killed(12, &quiet());
    let mut steps = Vec::new();
    for (device, bytes) in contents.iter().enumerate() {
        steps.push(Step::Write { device, offset: 0, bytes: bytes[..].into() });
        steps.push(Step::Sync { device });
    }
    let begin = steps.len();
    let disks = Disks::with(contents);
    disks.shared.lock().log = Some(Vec::new());
    let store = disks.open(&quiet());
    assert_eq!(tree(&store), expected);
    steps.extend(disks.shared.lock().log.take().unwrap());
    // The last sync of the log ends the replay. Drop it and all later calls, so that every crash is
    // during the replay.
    let replayed = |step: &Step| matches!(step, Step::Sync { device: LOG });
    steps.truncate(steps.iter().rposition(replayed).unwrap());
    change(&mut steps);
    assert!(steps.len() > begin + 10);
    for point in begin..=steps.len() {
        for number in 0..CRASHES {
            let mut rng = Rng::new(Seed(point as u64 * CRASHES + number));
            let disks = crash(&steps[..point], &mut rng);
            let report = fsck_devices(&disks.devices()).expect("a check");
            let got = tree(&disks.open(&quiet()));
            if !report.findings.is_empty() || got != expected {
                return Some(format!("point {point} of {}: {:?}", steps.len(), report.findings));
            }
        }
    }
    None
}

/// Guarantee I.3: after a kill during a replay, the next mount replays the log again, or finds it
/// complete.
#[test]
fn crash_during_a_replay_keeps_confirmed_changes() {
    assert_eq!(try_points(|_| ()), None);
}

/// Without the sync of file data before the commit that makes the log void, a crash loses the data.
/// The crash test must notice that.
#[test]
fn control_data_that_is_not_synced_before_the_log_is_void_is_caught() {
    for device in [DATA, META] {
        let wrong = try_points(|steps| {
            let begin = 8;
            for step in &mut steps[begin..] {
                if matches!(step, Step::Sync { device: at } if *at == device) {
                    // The sync is replaced by one of an unused device, so that later calls keep
                    // their indexes.
                    *step = Step::Sync { device: 9 };
                }
            }
        });
        // The test can notice only the missing sync of file data. Without the sync of the database,
        // a crash only undoes the commit, and the next mount replays the log again.
        assert_eq!(wrong.is_some(), device == DATA, "{wrong:?}");
    }
}
