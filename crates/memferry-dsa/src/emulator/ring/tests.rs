use super::*;

#[test]
fn the_limit_is_exact_and_order_is_kept() {
    let ring = Ring::new();
    for round in 0..100 {
        for entry in 0..3 {
            assert_eq!(ring.push(ONLY, &[round, entry, 0, 0, 0, 0, 0, 7], 0, 3), Ok(()));
        }
        assert_eq!(ring.push(ONLY, &[0; 8], 0, 3), Err(Refusal::Full));
        for entry in 0..3 {
            assert_eq!(pop(&ring), Some([round, entry, 0, 0, 0, 0, 0, 7]));
        }
        assert_eq!(pop(&ring), None);
    }
    assert_eq!((ring.pushed(), ring.popped()), (300, 300));
}

#[test]
fn a_closed_ring_keeps_what_it_has_until_it_is_opened() {
    let ring = Ring::new();
    for round in 1..600 {
        ring.push(ONLY, &[round; 8], 0, 2).unwrap();
        ring.close();
        ring.close();
        assert_eq!(ring.push(ONLY, &[0; 8], 0, 2), Err(Refusal::Closed));
        assert_eq!(ring.pushed(), round);
        assert_eq!(pop(&ring), Some([round; 8]));
        assert_eq!(ring.head(), None);
        ring.open();
        assert_eq!(ring.head(), None);
    }
}

/// A client that dies between any two steps of `push` leaves an entry of its own, and nothing that stays.
#[test]
fn the_dead_are_skipped() {
    let ring = Ring::new();
    ring.push(1, &[1; 8], 0, 4).unwrap();
    // What a submitter that dies after the first step of a push leaves.
    ring.slot(1).mark.store(Mark::new(1, 2, Stage::Taken).0, Ordering::Relaxed);
    assert_eq!((ring.entries_of(1), ring.entries_of(2), ring.entries_of(3)), (1, 1, 0));
    ring.push(3, &[3; 8], 0, 4).unwrap();
    assert_eq!(ring.pushed(), 3, "others have moved the tail for it");
    assert_eq!(pop(&ring), Some([1; 8]));
    let dead = ring.head().unwrap();
    assert_eq!((dead.client, dead.is_ready), (2, false));
    assert!(ring.skip(dead) && !ring.skip(dead));
    assert_eq!(ring.entries_of(2), 0);
    assert_eq!(pop(&ring), Some([3; 8]));
}

#[test]
fn nothing_is_lost_or_torn_between_threads() {
    const EACH: u64 = 20_000;
    let ring = Ring::new();
    std::thread::scope(|scope| {
        for submitter in 0..3 {
            let ring = &ring;
            scope.spawn(move || {
                for number in 0..EACH {
                    while ring.push(ONLY, &[submitter << 32 | number; 8], 0, 6).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut next = [0; 3];
        while next.iter().sum::<u64>() < 3 * EACH {
            let Some(words) = pop(&ring) else {
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

/// Three clients submit and take only what is theirs; a fourth thread closes and opens meanwhile.
#[test]
fn clients_take_turns_at_the_head() {
    const EACH: u64 = 10_000;
    let ring = Ring::new();
    let left = AtomicU64::new(3);
    std::thread::scope(|scope| {
        for client in 1..=3 {
            let (ring, left) = (&ring, &left);
            scope.spawn(move || {
                let (mut sent, mut seen) = (0, 0);
                while seen < EACH {
                    if sent < EACH && ring.push(client, &[sent << 8 | u64::from(client); 8], 0, 5).is_ok() {
                        sent += 1;
                    }
                    match ring.head().filter(|head| head.client == client && head.is_ready) {
                        Some(head) => {
                            assert_eq!(ring.pop(head), [seen << 8 | u64::from(client); 8]);
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
