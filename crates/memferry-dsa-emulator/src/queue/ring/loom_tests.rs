use loom::sync::Arc;

use super::*;

/// A ring, and the entries of one client.
struct Queue {
    ring: Ring,
    own: Entries,
}

impl Queue {
    fn new() -> Arc<Queue> {
        Arc::new(Queue { ring: Ring::new(), own: Entries::new() })
    }

    fn push(&self, number: u64) -> Result<(), PushError> {
        self.ring.push(&self.own, ONLY, &[number; 8], 0, 1)
    }

    fn pop(&self) -> Option<[u64; 8]> {
        pop(&self.ring, &self.own)
    }
}

/// A submitter that pushes one entry; its thread returns whether the ring accepted it.
fn submitter(queue: &Arc<Queue>, number: u64) -> loom::thread::JoinHandle<bool> {
    let queue = Arc::clone(queue);
    loom::thread::spawn(move || queue.push(number).is_ok())
}

/// Two submitters and the device on a ring with a limit of one: slots are reused, no entry is lost, torn or popped
/// twice, and the limit holds.
#[test]
fn loom_ring() {
    loom::model(|| {
        let queue = Queue::new();
        let submitters: Vec<_> = (1..=2).map(|number| submitter(&queue, number)).collect();
        let mut seen = Vec::new();
        for _ in 0..2 {
            seen.extend(queue.pop());
            loom::thread::yield_now();
        }
        let accepted =
            submitters.into_iter().map(|submitter| submitter.join().unwrap()).filter(|ok| *ok).count();
        seen.extend(std::iter::from_fn(|| queue.pop()));
        assert_eq!(seen.len(), accepted);
        assert!(accepted >= 1);
        for words in &seen {
            assert_eq!(*words, [words[0]; 8]);
        }
        seen.dedup();
        assert_eq!(seen.len(), accepted);
    });
}

/// A push that races with `close` either succeeds, and its entry is in the ring, or fails.
#[test]
fn loom_ring_close() {
    loom::model(|| {
        let queue = Queue::new();
        let submitter = submitter(&queue, 1);
        queue.ring.close();
        let pushed = queue.ring.pushed();
        let accepted = submitter.join().unwrap();
        assert_eq!(pushed, u64::from(accepted), "a closed ring took something, or lost it");
        assert_eq!(queue.pop().is_some(), accepted);
    });
}

/// The same with a ring that is opened again: accepted entries are in the ring, and it works afterwards.
#[test]
fn loom_ring_open() {
    loom::model(|| {
        let queue = Queue::new();
        let submitter = submitter(&queue, 1);
        queue.ring.close();
        queue.ring.open();
        let accepted = submitter.join().unwrap();
        assert_eq!(queue.pop().is_some(), accepted);
        assert_eq!(queue.push(2), Ok(()));
        assert_eq!(queue.pop(), Some([2; 8]));
        assert_eq!(queue.ring.pushed(), u64::from(accepted) + 1);
    });
}

/// Two clients, each with a submitter and a device: the second waits for the first, and writes slots that the first has
/// read.
#[test]
fn loom_ring_clients() {
    loom::model(|| {
        let ring = Arc::new(Ring::new());
        let client = |client: ClientId, ring: &Ring| {
            let own = Entries::new();
            let accepted = ring.push(&own, client, &[u64::from(client); 8], 0, 1).is_ok();
            if accepted {
                let head = ring.head().expect("no other client pops it");
                assert!(head.client == client && head.is_ready);
                assert_eq!(ring.pop(&own, head).map(|taken| taken.words), Some([u64::from(client); 8]));
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

/// The owner of the first entry died in the middle of a push. The server and a client skip the entry at the same time,
/// and the client's entry behind it is executed once.
#[test]
fn loom_ring_dead_owner() {
    const DEAD: ClientId = 2;
    loom::model(|| {
        let queue = Queue::new();
        queue.ring.take_slot(DEAD, 1).unwrap();
        let skips = |ring: &Ring| {
            if let Some(head) = ring.head().filter(|head| head.client == DEAD) {
                ring.skip(head);
            }
        };
        let server = {
            let queue = Arc::clone(&queue);
            loom::thread::spawn(move || skips(&queue.ring))
        };
        skips(&queue.ring);
        let accepted = queue.push(1).is_ok();
        let seen = queue.pop();
        server.join().unwrap();
        assert!(accepted, "the queue has room once the entry is skipped");
        assert_eq!(seen.or_else(|| queue.pop()), Some([1; 8]));
        assert_eq!((queue.pop(), queue.ring.popped()), (None, 2));
    });
}

/// The server revokes the entry of a slow submitter: the entry is executed if and only if it was accepted.
#[test]
fn loom_ring_revoked() {
    loom::model(|| {
        let queue = Queue::new();
        let submitter = submitter(&queue, 1);
        let snapshot = queue.ring.snapshot();
        let removed = queue.ring.repair(&snapshot, |_, position| queue.own.has(position));
        let accepted = submitter.join().unwrap();
        let executed = queue.pop().or_else(|| queue.ring.take_stranded(&queue.own).map(|taken| taken.words));
        assert_eq!(executed.is_some(), accepted, "removed: {removed}");
        assert_eq!(queue.push(2), Ok(()));
        assert_eq!(queue.pop(), Some([2; 8]));
    });
}
