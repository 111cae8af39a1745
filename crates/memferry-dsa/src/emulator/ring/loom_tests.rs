use loom::sync::Arc;

use super::*;

/// A submitter with one entry; whether it was taken.
fn submitter(ring: &Arc<Ring>, number: u64) -> loom::thread::JoinHandle<bool> {
    let ring = Arc::clone(ring);
    loom::thread::spawn(move || ring.push(ONLY, &[number; 8], 0, 1).is_ok())
}

/// Two submitters and the device on a ring with a limit of one: slots are reused, nothing is lost, torn or
/// seen twice, and the limit holds.
#[test]
fn loom_ring() {
    loom::model(|| {
        let ring = Arc::new(Ring::new());
        let submitters: Vec<_> = (1..=2).map(|number| submitter(&ring, number)).collect();
        let mut seen = Vec::new();
        for _ in 0..2 {
            seen.extend(pop(&ring));
            loom::thread::yield_now();
        }
        let accepted =
            submitters.into_iter().map(|submitter| submitter.join().unwrap()).filter(|ok| *ok).count();
        seen.extend(std::iter::from_fn(|| pop(&ring)));
        assert_eq!(seen.len(), accepted);
        assert!(accepted >= 1);
        for words in &seen {
            assert_eq!(*words, [words[0]; 8]);
        }
        seen.dedup();
        assert_eq!(seen.len(), accepted);
    });
}

/// A push that races with `close` either happened, and its entry is there, or did not.
#[test]
fn loom_ring_close() {
    loom::model(|| {
        let ring = Arc::new(Ring::new());
        let submitter = submitter(&ring, 1);
        ring.close();
        let pushed = ring.pushed();
        let accepted = submitter.join().unwrap();
        assert_eq!(pushed, u64::from(accepted), "a closed ring took something, or lost it");
        assert_eq!(pop(&ring).is_some(), accepted);
    });
}

/// The same when the ring is opened again: what was accepted is there, in a ring that goes on.
#[test]
fn loom_ring_open() {
    loom::model(|| {
        let ring = Arc::new(Ring::new());
        let submitter = submitter(&ring, 1);
        ring.close();
        ring.open();
        let accepted = submitter.join().unwrap();
        assert_eq!(pop(&ring).is_some(), accepted);
        assert_eq!(ring.push(ONLY, &[2; 8], 0, 1), Ok(()));
        assert_eq!(pop(&ring), Some([2; 8]));
        assert_eq!(ring.pushed(), u64::from(accepted) + 1);
    });
}

/// Two clients, each a submitter and a device of its own: who comes second waits for the first, and slots
/// that one has read are written by the other.
#[test]
fn loom_ring_clients() {
    loom::model(|| {
        let ring = Arc::new(Ring::new());
        let client = |client: ClientId, ring: &Ring| {
            let accepted = ring.push(client, &[u64::from(client); 8], 0, 1).is_ok();
            if accepted {
                let head = ring.head().expect("nobody else takes it");
                assert!(head.client == client && head.is_ready);
                assert_eq!(ring.pop(head), [u64::from(client); 8]);
            }
            accepted
        };
        let other = {
            let ring = Arc::clone(&ring);
            loom::thread::spawn(move || client(2, &ring))
        };
        let mine = client(1, &ring);
        assert!(other.join().unwrap() || mine);
        assert_eq!(ring.head(), None);
    });
}
