//! The log on a faulty disk: one sequence of steps for each fault that mattered.

use super::*;

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
    let (disk, min_free) = (Disk::new(0), MinFree::Bytes(1 << 20));
    let options = Options {
        dir: disk.path().to_owned(),
        sync: Sync::Always,
        group_window: Duration::ZERO,
        segment_bytes: 1 << 20,
        max_bytes: 1 << 30,
        min_free,
    };
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
