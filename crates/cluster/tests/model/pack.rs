//! States packed into keys of 448 bits, because the search stores millions of states.

use super::state::{
    DIRS, Database, Fill, Holder, Intent, LateAck, LateChange, MOUNTS, Mount, Reader, Renewal,
    State, Writer,
};

pub(crate) type Key = [u64; 7];

struct Packer {
    key: Key,
    position: u32,
}

impl Packer {
    fn put(&mut self, value: u8, bits: u32) {
        assert!(u32::from(value) < 1 << bits, "{value} has more than {bits} bits");
        let (word, shift) = ((self.position / 64) as usize, self.position % 64);
        self.key[word] |= u64::from(value) << shift;
        if shift + bits > 64 {
            self.key[word + 1] |= u64::from(value) >> (64 - shift);
        }
        self.position += bits;
    }

    fn put_all<const N: usize>(&mut self, values: [u8; N], bits: u32) {
        values.into_iter().for_each(|value| self.put(value, bits));
    }

    fn database(&mut self, db: &Database) {
        let Database { version, home, leases, until, session, intents, last_id, slot, .. } = *db;
        self.put(version, 3);
        self.put(home, 1);
        self.put_all::<DIRS>(leases, 3);
        self.put_all::<MOUNTS>(until, 3);
        self.put_all::<MOUNTS>(session, 2);
        for Intent { id, dirs, acked } in intents {
            self.put(id, 3);
            self.put(dirs, 2);
            self.put(acked, 3);
        }
        self.put(last_id, 3);
        slot.into_iter().for_each(|slot| self.put_all(slot, 2));
        let Database { result, applied, last, boot, grace, registered, locks, file_lock, .. } = *db;
        self.put_all(result, 3);
        self.put_all(applied, 2);
        self.put(last, 2);
        self.put(boot, 2);
        self.put(grace, 3);
        self.put(registered, 3);
        self.put_all(locks, 2);
        self.put(file_lock as u8, 2);
    }

    fn mount(&mut self, mount: &Mount) {
        let Mount { is_killed, session, boot, own, is_dead, cache, kernel, kernel_left, .. } =
            *mount;
        self.put(is_killed.into(), 1);
        self.put(session, 2);
        self.put(boot, 2);
        self.put(own, 3);
        self.put(is_dead.into(), 1);
        self.put_all(cache, 3);
        self.put(kernel, 3);
        self.put(kernel_left, 3);
        self.put(mount.kernel_knows.into(), 1);
        self.put(mount.stage as u8, 2);
        let (tag, version, left) = match mount.reader {
            Reader::Idle => (0, 0, 0),
            Reader::Checked => (1, 0, 0),
            Reader::Reply { version, left } => (2, version, left),
        };
        self.put(tag, 2);
        self.put(version, 3);
        self.put(left, 3);
        self.put(mount.done, 2);
        self.put(mount.has_failed.into(), 1);
        self.requests(mount);
    }

    fn requests(&mut self, mount: &Mount) {
        let Fill { step, dir, boot, value } = mount.fill;
        self.put(step as u8, 2);
        self.put(dir, 1);
        self.put(boot, 2);
        self.put(value.min(7), 3);
        let Writer { step, moves, session, seen, version, boot } = mount.writer;
        self.put(step as u8, 3);
        self.put(moves.into(), 1);
        self.put(session.min(3), 2);
        self.put(seen, 2);
        self.put(version, 3);
        self.put(boot, 2);
        let Holder { step, owner, id } = mount.holder;
        self.put(step as u8, 2);
        self.put(owner, 2);
        self.put(id, 3);
        let Renewal { is_evaluated, knew_boot, candidate, pending } = mount.renewal;
        self.put(is_evaluated.into(), 1);
        self.put(knew_boot.into(), 1);
        self.put(candidate, 3);
        self.put(pending, 3);
        let LateChange { number, session, moves, is_started } = mount.late_change;
        self.put(number, 2);
        self.put(session, 2);
        self.put(moves.into(), 1);
        self.put(is_started.into(), 1);
        let LateAck { id, owner, session } = mount.late_ack;
        self.put(id, 3);
        self.put(owner, 2);
        self.put(session, 2);
    }
}

/// Returns the key of a state. It contains only the first `mounts` mounts.
pub(crate) fn pack(state: &State, mounts: usize) -> Key {
    let mut packer = Packer { key: [0; 7], position: 0 };
    packer.database(&state.db);
    packer.put(state.floor, 3);
    let faults = state.faults;
    for count in [faults.losses, faults.crashes, faults.kills, faults.expiries, faults.slow_ticks] {
        packer.put(count, 2);
    }
    state.mounts[..mounts].iter().for_each(|mount| packer.mount(mount));
    packer.key
}
