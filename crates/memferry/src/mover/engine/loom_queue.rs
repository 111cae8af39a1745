//! Models of the queue of a CPU engine: no item is lost or doubled, and no wake-up is missed.

use std::collections::VecDeque;

use loom::thread;

use super::Refusal;
use super::halt_poll::HaltPoll;
use super::queue::Queue;
use crate::sync::Arc;

/// Pops one item, with polling.
fn pop(queue: &Queue<i32>) -> Option<i32> {
    let mut taken = VecDeque::new();
    queue.pop(&mut taken, &mut HaltPoll::always(), |_| false);
    assert!(taken.len() <= 1);
    taken.pop_front()
}

#[test]
fn loom_two_workers_get_two_items() {
    loom::model(|| {
        let queue = Arc::new(Queue::new());
        let workers = [(); 2].map(|()| {
            let queue = queue.clone();
            thread::spawn(move || pop(&queue))
        });
        queue.push(1, 2).expect("room");
        queue.push(2, 2).expect("room");
        let items = workers.map(|worker| worker.join().expect("no panic").expect("not closed"));
        assert_eq!(items.iter().sum::<i32>(), 3);
    });
}

#[test]
fn loom_a_batch_wakes_two_workers() {
    loom::model(|| {
        let queue = Arc::new(Queue::new());
        let workers = [(); 2].map(|()| {
            let queue = queue.clone();
            thread::spawn(move || pop(&queue))
        });
        assert_eq!(queue.push_all(vec![1, 2, 4], 2), (vec![4], Refusal::Full));
        let items = workers.map(|worker| worker.join().expect("no panic").expect("not closed"));
        assert_eq!(items.iter().sum::<i32>(), 3);
    });
}

#[test]
fn loom_closing_wakes_and_drains() {
    loom::model(|| {
        let queue = Arc::new(Queue::new());
        let worker = {
            let queue = queue.clone();
            // All items are small: it may take both at once.
            thread::spawn(move || {
                let (mut taken, mut sum) = (VecDeque::new(), 0);
                loop {
                    queue.pop(&mut taken, &mut HaltPoll::always(), |_| true);
                    if taken.is_empty() {
                        return sum;
                    }
                    sum += taken.drain(..).sum::<i32>();
                }
            })
        };
        queue.push(5, 2).expect("room");
        queue.push(6, 2).expect("room");
        queue.close();
        assert_eq!(queue.push(7, 2), Err((7, Refusal::Gone)));
        assert_eq!(worker.join().expect("no panic"), 11);
    });
}

#[test]
fn loom_a_full_queue_refuses() {
    loom::model(|| {
        let queue = Arc::new(Queue::new());
        let worker = {
            let queue = queue.clone();
            thread::spawn(move || pop(&queue))
        };
        queue.push(1, 1).expect("room");
        let second = queue.push(2, 1);
        assert_eq!(worker.join().expect("no panic"), Some(1));
        match second {
            Ok(()) => assert_eq!(pop(&queue), Some(2)),
            Err(refused) => assert_eq!(refused, (2, Refusal::Full)),
        }
    });
}
