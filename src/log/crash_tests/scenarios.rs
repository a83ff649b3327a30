//! The log on a faulty disk: one sequence of steps for each fault that mattered.

use super::super::spares::{Spares, is_spare};
use super::super::state::{Phase, Writer};
use super::super::{record, segment};
use super::*;
use crate::disk::OpenMode;

/// Runs the same steps on many disks, each with its own random choices.
fn on_many_disks(sync: Sync, steps: &[Step]) {
    (0..300).for_each(|seed| run(seed, sync, steps));
}

#[test]
fn records_refused_on_a_full_disk_never_reappear() {
    on_many_disks(Sync::Always, &[Step::FreeBytes(124), Step::Append(vec![3]), Step::Append(vec![0, 0])]);
}

#[test]
fn a_log_poisoned_at_a_new_segment_continues_in_a_durable_one() {
    let append = |sizes: &[u8]| Step::Append(sizes.to_vec());
    let (fail, restart) = (Step::Fail(Call::SyncNames), Step::Restart(End::Kill, 33));
    on_many_disks(Sync::Always, &[append(&[5, 1]), fail, append(&[0]), restart, append(&[0])]);
}

#[test]
fn records_found_after_a_failed_sync_are_synced_first() {
    let append = || Step::Append(vec![0]);
    let (fail, restart) = (Step::Fail(Call::Sync), Step::Restart(End::Kill, 300));
    on_many_disks(Sync::Always, &[append(), fail, append(), restart.clone(), append(), restart, append()]);
}

#[test]
fn the_writer_of_a_poisoned_log_waits_for_the_close_and_ends() {
    for (sync, must_roll) in [(Sync::Always, true), (Sync::Every(Duration::ZERO), false)] {
        let mut world = World::new(0, sync);
        world.step(&Step::Fail(Call::Sync));
        world.append(&[0]);
        assert!(world.log.poisoned().is_some());
        world.log.shared.lock().must_roll = must_roll; // a check of the disk asked for it during the sync
        let World { log, committer, .. } = world;
        std::thread::scope(|scope| {
            let group = scope.spawn(|| committer.next_group().map(|group| group.len()));
            while log.shared.lock().writer != Writer::WaitsForRecord && !group.is_finished() {
                std::thread::yield_now();
            }
            log.close();
            assert_eq!(group.join().unwrap(), None, "it had nothing to write");
        });
        committer.run();
        assert_eq!(log.shared.lock().phase, Phase::Closed);
    }
}

#[test]
fn records_left_unsynced_by_a_kill_are_durable_once_reopened() {
    let append = || Step::Append(vec![0]);
    let restart = Step::Restart(End::Kill, 33);
    on_many_disks(Sync::Every(INTERVAL), &[append(), append(), restart, append(), append()]);
}

#[test]
fn a_power_cut_at_any_call_leaves_a_log_that_opens() {
    for sync in [Sync::Always, Sync::Every(INTERVAL)] {
        for (seed, calls) in (0..30).flat_map(|seed| (0..60).map(move |calls| (seed, calls))) {
            let mut world = World::new(seed, sync);
            world.append(&[0, 1]);
            world.disk.cut_power_after(calls);
            world.has_failed = true;
            for _ in 0..4 {
                world.append(&[2, 0]); // every second one starts a segment
                world.step(&Step::SaveEnd);
                world.step(&Step::Tick);
            }
            world.restart(End::Crash, 300);
        }
    }
}

#[test]
fn a_power_cut_after_a_failed_segment_keeps_the_last_whole_one() {
    let append = |sizes: &[u8]| Step::Append(sizes.to_vec());
    for sync in [Sync::Always, Sync::Every(INTERVAL)] {
        for (seed, calls) in (0..30).flat_map(|seed| (0..20).map(move |calls| (seed, calls))) {
            let mut world = World::new(seed, sync);
            for step in [Step::Restart(End::Close, 33), append(&[0]), append(&[2, 0])] {
                world.step(&step);
            }
            world.disk.set_free_bytes(24); // the next segment gets a part of its header
            world.append(&[0]);
            let end = world.log.usage().readable;
            world.log.cut(end).unwrap();
            world.maybe_cut.push(world.records.len());
            for step in [Step::PowerCutAfter(calls), append(&[0]), Step::Restart(End::Close, 33)] {
                world.step(&step);
            }
        }
    }
}

/// Lets each call of a log that rolls and cuts fail for lack of space, alone and with the calls behind it.
/// Then the disk heals, the log goes on or is started again, and the process ends in each way.
#[test]
fn a_disk_that_was_full_from_any_call_on_and_healed_leaves_a_whole_log() {
    let mut met = std::collections::BTreeSet::new();
    for sync in [Sync::Always, Sync::Every(INTERVAL)] {
        for end in [End::Crash, End::Kill, End::Close] {
            for (after, calls) in (0..50).flat_map(|after| (1..=4).map(move |calls| (after, calls))) {
                let mut world = World::new(u64::from(after), sync);
                world.append(&[0, 1]);
                world.step(&Step::FullFor(after, calls));
                for _ in 0..5 {
                    world.append(&[2, 0]); // every second one starts a segment
                    world.step(&Step::SaveEnd);
                    world.step(&Step::CheckDisk); // a refusing log ends its segment
                    world.step(&Step::Tick);
                }
                let failed = world.disk.failed_for_space();
                met.extend(failed.iter().map(|call| format!("{call:?}")));
                let syncs = failed.iter().any(|call| matches!(call, Call::Sync | Call::SyncNames | Call::SetLen));
                assert!(syncs || world.log.poisoned().is_none(), "{failed:?}: {:?}", world.log.poisoned());
                world.disk.heal();
                for _ in 0..4 {
                    world.append(&[1, 3]);
                }
                world.reads_what_it_acknowledged();
                world.restart(end, 300);
                world.append(&[1, 2, 3]);
                world.restart(End::Crash, 300);
            }
        }
    }
    let all = ["Create", "Rename", "Sync", "SyncNames", "Write"];
    assert!(all.iter().all(|&call| met.contains(call)), "{met:?}");
}

#[test]
fn a_cut_never_moves_back() {
    let mut world = World::new(0, Sync::Always);
    (0..6).for_each(|_| world.append(&[0, 0]));
    let (start, end) = (world.start.0, world.log.usage().readable);
    world.log.cut(end).unwrap();
    world.log.cut(start).unwrap();
    let (log, _, recovery) = open(&world.disk, Sync::Always, 300).unwrap();
    assert_eq!((recovery.start, recovery.readings), (end, 0));
    assert_eq!(log.usage().bytes, world.log.usage().bytes);
}

#[test]
fn a_start_removes_nothing_for_an_unsynced_checkpoint() {
    for (seed, calls) in (0..60).flat_map(|seed| (0..40).map(move |calls| (seed, calls))) {
        let mut world = World::new(seed, Sync::Always);
        (0..6).for_each(|_| world.append(&[0, 0]));
        world.disk.fail(Call::Sync);
        world.log.cut(world.log.usage().readable).unwrap_err();
        world.maybe_cut.push(world.records.len());
        world.disk.cut_power_after(calls);
        world.restart(End::Kill, 300);
    }
}

#[test]
fn a_log_that_has_filled_its_disk_can_be_opened_and_cut() {
    let mut world = World::new(0, Sync::Always);
    (0..6).for_each(|_| world.append(&[0, 0]));
    world.disk.set_free_bytes(0);
    let (log, ..) = open(&world.disk, Sync::Always, 300).unwrap();
    for position in [world.start.0, log.usage().readable] {
        log.cut(position).unwrap();
    }
    assert!(log.usage().bytes < world.log.usage().bytes);
}

#[test]
fn without_file_descriptors_the_log_refuses_until_it_has_some() {
    let mut world = World::new(0, Sync::Always);
    world.append(&[5, 5, 5]); // more than a segment
    world.disk.run_out_of_files();
    let refused = |world: &mut World| {
        let ack = world.log.append(batch(0, 0)).unwrap();
        let group = world.committer.next_group().unwrap();
        world.committer.commit(group);
        ack.wait().unwrap_err()
    };
    for _ in 0..3 {
        assert_eq!(refused(&mut world), AppendError::OutOfFiles);
    }
    assert_eq!((world.log.poisoned(), world.log.usage().is_disk_full), (None, true));
    world.disk.heal();
    world.append(&[1, 2]);
    world.restart(End::Crash, 300);
}

#[test]
fn below_its_reserve_the_log_refuses_and_ends_the_segment() {
    let disk = Disk::new(0);
    let options = Options { min_free: MinFree::Bytes(1 << 20), ..Options::of_test(disk.path()) };
    let (log, mut committer, _) = Log::assemble(Arc::new(disk.clone()), options, Instruments::default()).unwrap();
    let mut append = |log: &Log| {
        let ack = log.append(batch(0, 3))?;
        committer.commit(committer.next_group().unwrap());
        ack.wait()
    };
    disk.set_free_bytes((1 << 20) + 300_000);
    append(&log).unwrap();
    let mut appended = 1;
    while append(&log).is_ok() {
        appended += 1;
    }
    assert_eq!(append(&log), Err(AppendError::DiskFull));
    assert!(appended > 1000 && log.usage().is_disk_full, "{appended} records");
    log.check_disk();
    committer.commit(committer.next_group().unwrap());
    log.cut(log.usage().readable).unwrap();
    assert!(log.usage().bytes < 100, "only the header of a new segment is left: {} bytes", log.usage().bytes);
    log.check_disk();
    assert!(log.usage().is_disk_full, "this disk does not free the space of removed files");
    disk.set_free_bytes((1 << 20) + 600_000);
    log.check_disk();
    assert!(!log.usage().is_disk_full);
    log.append(batch(0, 3)).unwrap();
}

#[test]
fn a_stored_log_takes_each_record_that_an_empty_one_takes() {
    let disk = Disk::new(0);
    let [small, large] = [9, 255].map(|readings| batch(0, readings));
    let max_bytes: u64 = [&small, &large].map(|batch| record::encoded_bytes(batch.payload()) as u64).iter().sum();
    let options = Options { max_bytes, ..Options::of_test(disk.path()) };
    let (log, mut committer, _) = Log::assemble(Arc::new(disk), options, Instruments::default()).unwrap();
    drop(log.append(small).unwrap());
    committer.commit(committer.next_group().unwrap());
    log.cut(log.usage().readable).unwrap();
    for ends_segment in [true, false] {
        assert_eq!(log.append(large.clone()).unwrap_err(), AppendError::Full(max_bytes));
        assert_eq!(log.shared.lock().must_roll, ends_segment, "a segment without records does not end");
        committer.commit(Vec::new());
    }
    log.cut(log.usage().readable).unwrap();
    log.append(large).unwrap();
}

#[test]
fn a_log_that_cannot_be_read_does_not_open_and_loses_nothing() {
    for call in [Call::Names, Call::Open, Call::Read, Call::Sync, Call::SyncNames] {
        let mut world = World::new(0, Sync::Always);
        (0..6).for_each(|_| world.append(&[0, 0]));
        world.disk.fail(call);
        let refused = open(&world.disk, Sync::Always, 300).unwrap_err();
        assert!(matches!(refused, LogError::Io { .. }), "{call:?}: {refused}");
        world.restart(End::Crash, 300);
        assert_eq!(world.records.len(), 12);
    }
}

/// Appends to a log and cuts it, on a sound disk. Returns the number of times that its newest file had room.
fn rolls_into_spares(world: &mut World, rounds: usize) -> usize {
    let mut in_room = 0;
    for _ in 0..rounds {
        world.append(&[2, 0]); // every second one starts a segment
        world.step(&Step::SaveEnd);
        world.step(&Step::Spares);
        world.step(&Step::Tick);
        let newest = segment::name(*world.log.shared.lock().bases.last().unwrap());
        let bytes = world.disk.open(&newest, OpenMode::Read).map_or(0, |file| file.len().unwrap());
        in_room += usize::from(bytes == 300 && world.committer.appender.room() > 0);
        if world.log.poisoned().is_none() {
            let (readable, count) = (world.log.usage().readable, world.known());
            world.log.cut(readable).unwrap();
            world.records.drain(..count);
            world.start = (readable, 0);
            world.maybe_cut.clear();
        }
    }
    in_room
}

#[test]
fn a_power_cut_at_any_call_leaves_a_log_of_recycled_files_that_opens() {
    let mut in_room = 0;
    for sync in [Sync::Always, Sync::Every(INTERVAL)] {
        for (seed, calls) in (0..15).flat_map(|seed| (0..110).map(move |calls| (seed, calls))) {
            let mut world = World::new(seed, sync);
            in_room += rolls_into_spares(&mut world, 4);
            world.disk.cut_power_after(calls);
            world.has_failed = true;
            for _ in 0..6 {
                world.append(&[2, 0]);
                world.step(&Step::SaveEnd);
                world.step(&Step::Spares);
                world.step(&Step::Tick);
            }
            world.restart(End::Crash, 300);
            world.append(&[2, 0, 5]);
            world.restart(End::Crash, 300);
        }
    }
    assert!(in_room > 1_000, "{in_room} groups were written into spares");
}

/// As `a_disk_that_was_full_from_any_call_on_and_healed_leaves_a_whole_log`, with the calls that make spares
/// and roll into them.
#[test]
fn a_disk_that_was_full_while_files_were_recycled_leaves_a_whole_log() {
    let mut met = std::collections::BTreeSet::new();
    for sync in [Sync::Always, Sync::Every(INTERVAL)] {
        for end in [End::Crash, End::Kill, End::Close] {
            for (after, calls) in (0..70).flat_map(|after| (1..=4).map(move |calls| (after, calls))) {
                let mut world = World::new(u64::from(after), sync);
                rolls_into_spares(&mut world, 4);
                world.step(&Step::FullFor(after, calls));
                for _ in 0..5 {
                    world.append(&[2, 0]);
                    world.step(&Step::SaveEnd);
                    world.step(&Step::Spares);
                    world.step(&Step::CheckDisk);
                    world.step(&Step::Tick);
                }
                let failed = world.disk.failed_for_space();
                met.extend(failed.iter().map(|call| format!("{call:?}")));
                let syncs = failed.iter().any(|call| matches!(call, Call::Sync | Call::SyncNames | Call::SetLen));
                assert!(syncs || world.log.poisoned().is_none(), "{failed:?}: {:?}", world.log.poisoned());
                world.disk.heal();
                rolls_into_spares(&mut world, 3);
                world.reads_what_it_acknowledged();
                world.restart(end, 300);
                world.append(&[1, 2, 3]);
                world.restart(End::Crash, 300);
            }
        }
    }
    let all = ["Create", "Rename", "SetLen", "Sync", "SyncNames", "Write"];
    assert!(all.iter().all(|&call| met.contains(call)), "{met:?}");
}

/// The names of the spares on a disk.
fn spares_on(disk: &Disk) -> Vec<String> {
    disk.names().unwrap().into_iter().filter(|name| is_spare(name)).collect()
}

#[test]
fn near_its_limits_the_log_gives_its_spares_and_its_room_back() {
    let mut world = World::new(0, Sync::Always);
    rolls_into_spares(&mut world, 6);
    while world.committer.appender.room() == 0 || spares_on(&world.disk).is_empty() {
        rolls_into_spares(&mut world, 1);
    }
    let before = world.log.usage();
    world.disk.set_free_bytes(250); // less than a segment
    world.log.check_disk();
    world.committer.commit(Vec::new()); // the writer was woken for this
    assert_eq!((spares_on(&world.disk), world.committer.appender.room()), (Vec::new(), 0));
    let after = world.log.usage();
    assert!(!after.is_disk_full && after.bytes >= before.bytes, "{after:?}");
    world.append(&[0]);
    for _ in 0..3 {
        world.append(&[0]);
        world.step(&Step::Spares);
    }
    assert_eq!(spares_on(&world.disk), Vec::<String>::new(), "no spare is made on a disk this full");
    world.disk.heal();
    world.restart(End::Crash, 300);
}

#[test]
fn a_spare_for_which_the_disk_has_no_space_leaves_no_trace() {
    for after in 0..6 {
        let mut world = World::new(0, Sync::Always);
        world.append(&[0]);
        world.append(&[0]); // asks for a spare
        world.disk.fill_for(after, 1);
        world.step(&Step::Spares);
        let failed = world.disk.failed_for_space().len();
        world.disk.heal();
        let left = spares_on(&world.disk).len();
        assert_eq!(left, 1 - failed, "call {after}");
        world.has_failed = true;
        world.append(&[2, 2]);
        world.restart(End::Crash, 300);
        assert_eq!(spares_on(&world.disk).len(), 0, "an opening removes spares");
    }
}

#[test]
fn spares_are_kept_only_while_they_fit() {
    let disk: Arc<dyn Folder> = Arc::new(Disk::new(0));
    let spares = Spares::new(disk, 100, 1_000);
    let fits = |used, free| {
        spares.fit(used, free);
        spares.limit()
    };
    // Beside the newest segment, a log of 1,000 bytes has room for (1,000 - used) / 100 - 1 spares.
    for (used, most) in [(0, 2), (700, 2), (701, 1), (800, 1), (801, 0), (2_000, 0)] {
        assert_eq!(fits(used, 1 << 40), most, "{used} bytes used");
    }
    for (free, most) in [(0, 0), (99, 0), (199, 0), (200, 1), (299, 1), (300, 2), (1_000, 2)] {
        assert_eq!(fits(0, free), most, "{free} bytes free");
    }
    // One spare is there, and so it takes no more of the free bytes.
    spares.fit(0, 200);
    spares.request();
    for (free, most) in [(99, 0), (100, 1), (199, 1), (200, 2)] {
        assert_eq!(fits(0, free), most, "{free} bytes free beside one spare");
    }
}
