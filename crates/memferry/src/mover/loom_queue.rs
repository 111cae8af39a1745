//! Models of the queue in front of CPU workers: nothing is lost, doubled, or slept through.

use loom::thread;

use super::Refusal;
use super::linger::Linger;
use super::queue::Queue;
use crate::sync::Arc;

#[test]
fn loom_two_workers_get_two_items() {
    loom::model(|| {
        let queue = Arc::new(Queue::new());
        let workers = [(); 2].map(|()| {
            let queue = queue.clone();
            thread::spawn(move || queue.pop(&mut Linger::always()))
        });
        queue.push(1, 2).expect("room");
        queue.push(2, 2).expect("room");
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
            thread::spawn(move || std::iter::from_fn(|| queue.pop(&mut Linger::always())).sum::<i32>())
        };
        queue.push(5, 1).expect("room");
        queue.close();
        assert_eq!(queue.push(6, 1), Err((6, Refusal::Gone)));
        assert_eq!(worker.join().expect("no panic"), 5);
    });
}

#[test]
fn loom_a_full_queue_refuses() {
    loom::model(|| {
        let queue = Arc::new(Queue::new());
        let worker = {
            let queue = queue.clone();
            thread::spawn(move || queue.pop(&mut Linger::always()))
        };
        queue.push(1, 1).expect("room");
        let second = queue.push(2, 1);
        assert_eq!(worker.join().expect("no panic"), Some(1));
        match second {
            Ok(()) => assert_eq!(queue.pop(&mut Linger::new()), Some(2)),
            Err(refused) => assert_eq!(refused, (2, Refusal::Full)),
        }
    });
}
