use super::*;

#[test]
fn the_limit_is_exact_and_order_is_kept() {
    let (ring, own) = (Ring::new(), Entries::new());
    for round in 0..100 {
        for entry in 0..3 {
            assert_eq!(ring.push(&own, ONLY, &[round, entry, 0, 0, 0, 0, 0, 7], 0, 3), Ok(()));
        }
        assert_eq!(ring.push(&own, ONLY, &[0; 8], 0, 3), Err(PushError::Full));
        for entry in 0..3 {
            assert_eq!(pop(&ring, &own), Some([round, entry, 0, 0, 0, 0, 0, 7]));
        }
        assert_eq!(pop(&ring, &own), None);
    }
    assert_eq!((ring.pushed(), ring.popped()), (300, 300));
}

#[test]
fn a_closed_ring_keeps_its_entries_and_can_be_opened_again() {
    let (ring, own) = (Ring::new(), Entries::new());
    for round in 1..600 {
        ring.push(&own, ONLY, &[round; 8], 0, 2).unwrap();
        ring.close();
        ring.close();
        assert_eq!(ring.push(&own, ONLY, &[0; 8], 0, 2), Err(PushError::Closed));
        assert_eq!(ring.pushed(), round);
        assert_eq!(pop(&ring, &own), Some([round; 8]));
        assert_eq!(ring.head(), None);
        ring.open();
        assert_eq!(ring.head(), None);
    }
}

/// A client that dies between any two steps of `push` leaves only an entry of its own, which others skip.
#[test]
fn entries_of_dead_clients_are_skipped() {
    let (ring, own) = (Ring::new(), Entries::new());
    ring.push(&own, 1, &[1; 8], 0, 4).unwrap();
    // A submitter dies after the first step of a push.
    ring.slot(1).mark.store(Mark::new(1, 2, Stage::Taken).0, Ordering::Relaxed);
    assert_eq!((ring.entries_of(1), ring.entries_of(2), ring.entries_of(3)), (1, 1, 0));
    ring.push(&own, 3, &[3; 8], 0, 4).unwrap();
    assert_eq!(ring.pushed(), 3, "others have moved the tail for it");
    assert_eq!(pop(&ring, &own), Some([1; 8]));
    let dead = ring.head().unwrap();
    assert_eq!((dead.client, dead.is_ready), (2, false));
    assert!(ring.skip(dead) && !ring.skip(dead));
    assert_eq!(ring.entries_of(2), 0);
    assert_eq!(pop(&ring, &own), Some([3; 8]));
}

#[test]
fn nothing_is_lost_or_torn_between_threads() {
    const EACH: u64 = 20_000;
    let (ring, own) = (Ring::new(), Entries::new());
    std::thread::scope(|scope| {
        for submitter in 0..3 {
            let (ring, own) = (&ring, &own);
            scope.spawn(move || {
                for number in 0..EACH {
                    while ring.push(own, ONLY, &[submitter << 32 | number; 8], 0, 6).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut next = [0; 3];
        while next.iter().sum::<u64>() < 3 * EACH {
            let Some(words) = pop(&ring, &own) else {
                std::thread::yield_now();
                continue;
            };
            assert_eq!(words, [words[0]; 8], "an entry is torn");
            let submitter = (words[0] >> 32) as usize;
            assert_eq!(
                words[0] & 0xffff_ffff,
                next[submitter],
                "entries of submitter {submitter} out of order"
            );
            next[submitter] += 1;
        }
    });
}

/// Three clients push and pop their own entries; a fourth thread closes and opens the ring meanwhile.
#[test]
fn clients_take_turns_at_the_head() {
    const EACH: u64 = 10_000;
    let ring = Ring::new();
    let left = AtomicU64::new(3);
    std::thread::scope(|scope| {
        for client in 1..=3 {
            let (ring, left) = (&ring, &left);
            scope.spawn(move || {
                let own = Entries::new();
                let (mut sent, mut seen) = (0, 0);
                while seen < EACH {
                    if sent < EACH
                        && ring.push(&own, client, &[sent << 8 | u64::from(client); 8], 0, 5).is_ok()
                    {
                        sent += 1;
                    }
                    match ring.head().filter(|head| head.client == client && head.is_ready) {
                        Some(head) => {
                            let taken = ring.pop(&own, head).unwrap();
                            assert_eq!(taken.words, [seen << 8 | u64::from(client); 8]);
                            seen += 1;
                        }
                        None => std::thread::yield_now(),
                    }
                }
                left.fetch_sub(1, Ordering::Relaxed);
            });
        }
        while left.load(Ordering::Relaxed) > 0 {
            ring.close();
            let pushed = ring.pushed();
            std::thread::yield_now();
            assert_eq!(ring.pushed(), pushed, "a closed ring took something");
            ring.open();
            std::thread::yield_now();
        }
    });
    assert_eq!((ring.pushed(), ring.popped()), (3 * EACH, 3 * EACH));
}

/// The words once lay in memory that all clients could write, and a forged mark executed them: a second time, or for a
/// client that had submitted nothing.
#[test]
fn a_mark_alone_makes_no_entry() {
    let (ring, own) = (Ring::new(), Entries::new());
    let forge = |position: u64| {
        ring.slot(position).mark.store(Mark::new(position, 1, Stage::Ready).0, Ordering::Relaxed);
        ring.head.0.store(position, Ordering::Relaxed);
        ring.submitters.0.tail.store(next(position), Ordering::Relaxed);
    };
    forge(0);
    assert_eq!((pop(&ring, &own), ring.popped()), (None, 1), "no client has submitted it; it is removed");
    ring.push(&own, 1, &[7; 8], 0, 4).unwrap();
    assert_eq!(pop(&ring, &own), Some([7; 8]));
    for position in [1, 1 + SLOTS as u64, 1 + (1 << 40)] {
        assert_eq!(slot_of(position), slot_of(1));
        forge(position);
        assert_eq!(pop(&ring, &own), None, "it was executed");
    }
    ring.push(&own, 1, &[8; 8], 0, 4).unwrap();
    let position = ring.popped();
    forge(position + SLOTS as u64);
    assert_eq!(pop(&ring, &own), None, "its seal is for another position");
    assert_eq!(ring.take_stranded(&own).map(|taken| taken.words), Some([8; 8]), "it is not lost");
    assert_eq!(ring.take_stranded(&own).map(|taken| taken.words), None);
}

/// Entries that were pushed during a search for stranded ones were taken for stranded: they were executed before their
/// predecessors, and counted twice.
#[test]
fn entries_pushed_during_the_search_are_not_stranded() {
    const COUNT: u64 = 200_000;
    let (ring, own) = (Ring::new(), Entries::new());
    let is_over = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..COUNT {
                while ring.push(&own, 1, &[number; 8], 0, 64).is_err() && is_over.load(Ordering::Relaxed) == 0
                {
                    std::thread::yield_now();
                }
            }
        });
        let (mut number, mut stranded) = (0, None);
        while number < COUNT && stranded.is_none() {
            stranded = ring.take_stranded(&own).map(|taken| (number, taken.words[0]));
            while pop(&ring, &own).is_some() {
                number += 1;
            }
        }
        is_over.store(1, Ordering::Relaxed);
        assert_eq!(stranded, None, "(entry at the head, entry that was taken)");
    });
}

/// A submitter is delayed, by a signal handler or a stopped process, until its slot is in use again. It once overwrote
/// an accepted entry, or lost its own although it was told that the queue had accepted it.
#[test]
fn a_reused_slot_loses_no_entry() {
    for has_put in [false, true] {
        let (ring, own) = (Ring::new(), Entries::new());
        let held_up = ring.take_slot(1, 4).unwrap();
        if has_put {
            assert!(own.put(held_up, &[7; 8], &0.into()));
        }
        assert!(ring.repair(&ring.snapshot(), |_, _| true));
        for number in 1..SLOTS as u64 {
            ring.push(&own, 1, &[number; 8], 0, 4).unwrap();
            assert_eq!(pop(&ring, &own), Some([number; 8]));
        }
        let second = ring.push(&own, 1, &[8; 8], 0, 4);
        let first = match has_put {
            true => ring.publish(&own, held_up, 1, 0),
            false => ring.put(&own, held_up, 1, &[7; 8], 0.into()),
        };
        assert_eq!(first, Err(PushError::Full), "the submitter is told that the queue refused");
        let executed = pop(&ring, &own);
        assert_eq!(executed, second.is_ok().then_some([8; 8]), "has put: {has_put}");
        assert!(ring.take_stranded(&own).is_none());
        // An abandoned slot belongs to client 0, and the next round finds it free.
        while let Some(head) = ring.head() {
            assert_eq!((head.client, ring.skip(head)), (0, true));
        }
        for number in 0..2 * SLOTS as u64 {
            ring.push(&own, 1, &[number; 8], 0, 4).unwrap();
            assert_eq!(pop(&ring, &own), Some([number; 8]));
        }
    }
}

/// A forged tail gives one slot to two submitters, which leave a torn entry. The slot is usable again.
#[test]
fn torn_entries_are_cleared() {
    let (ring, own) = (Ring::new(), Entries::new());
    let position = ring.take_slot(1, 4).unwrap();
    assert!(own.put(position, &[7; 8], &0.into()));
    own.tear(position);
    assert_eq!(ring.publish(&own, position, 1, 0), Ok(()));
    assert_eq!(pop(&ring, &own), None, "it is not executed");
    assert!(ring.take_stranded(&own).is_none());
    for number in 0..2 * SLOTS as u64 {
        ring.push(&own, 1, &[number; 8], 0, 4).unwrap();
        assert_eq!(pop(&ring, &own), Some([number; 8]));
    }
}

/// Neither an entry whose submitter has stopped in the middle nor an entry without an owner stops the queue. A
/// submitter that continues after the repair is told that the queue refused.
#[test]
fn a_stalled_ring_is_repaired() {
    let (ring, own) = (Ring::new(), Entries::new());
    let stuck = ring.take_slot(1, 4).unwrap();
    ring.push(&own, 2, &[2; 8], 0, 4).unwrap();
    assert!(!ring.head().unwrap().is_ready);
    assert!(ring.repair(&ring.snapshot(), |_, _| true));
    assert_eq!(pop(&ring, &own), Some([2; 8]));
    assert_ne!(Mark::new(stuck, 1, Stage::Taken).0, ring.slot(stuck).mark.load(Ordering::Relaxed));
    ring.push(&own, 3, &[3; 8], 0, 4).unwrap();
    let owed = |client, position| client == 3 && own.has(position);
    assert!(!ring.repair(&ring.snapshot(), owed), "its owner is waited for");
    assert!(ring.repair(&ring.snapshot(), |_, _| false));
    assert_eq!(ring.head(), None);
}

/// A ring with arbitrary content accepts and returns entries after some repairs.
#[test]
fn arbitrary_content_is_repaired() {
    let mut random = crate::config::Random::new(5);
    let mut word = move |near: u64| match random.next() % 5 {
        0 => 0,
        1 => u64::MAX,
        2 => near.wrapping_add(random.next() % 600).wrapping_sub(300),
        3 => (near.wrapping_add(random.next() % 600) << 14) | (random.next() % (1 << 14)),
        _ => random.next(),
    };
    for round in 0..3000u64 {
        let (ring, own) = (Ring::new(), Entries::new());
        let near = word(round);
        ring.submitters.0.tail.store(word(near) & !CLOSED, Ordering::Relaxed);
        ring.submitters.0.head_seen.store(word(near), Ordering::Relaxed);
        ring.head.0.store(word(near), Ordering::Relaxed);
        for slot in &ring.slots {
            slot.0.mark.store(word(near), Ordering::Relaxed);
        }
        let mut looks = 0;
        while ring.push(&own, 1, &[round; 8], 0, 4).is_err() || pop(&ring, &own).is_none() {
            while ring.head().is_some_and(|head| ring.pop(&own, head).is_none()) {}
            ring.repair(&ring.snapshot(), |_, position| own.has(position));
            looks += 1;
            assert!(looks < 2 * SLOTS, "round {round}: {:?}", ring.snapshot());
        }
        ring.close();
        ring.open();
        (0..4000).for_each(|client| _ = ring.entries_of(client % 3));
    }
}
