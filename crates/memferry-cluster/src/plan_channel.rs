//! The channel by which a coordinator sends a plan to a worker. It owns the reads that the plan announces.
//!
//! ```text
//! coordinator ══ request: the plan, then nothing until the query ends ══▶ worker: body of the request
//!      │                                                                    └─ owns ─▶ Reads ─▶ Ahead of each scan
//!      └─ the query ends, is cancelled or fails, the process dies ─▶ the body is dropped ─▶ the reads end
//! ```
//!
//! datafusion-distributed 4.0 removes the plan from its cache at that moment, but the cache drops removed entries later, when others
//! come. So reads would go on after their query.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use http::{HeaderMap, HeaderValue, Request};
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::codegen::{Bytes, Service};
use tonic::server::NamedService;

use crate::ahead::Ahead;

/// The header with the number of the channel: of a request, the session of its plan gets the headers only.
const HEADER: &str = "memferry-plan-channel";

/// The reads of a plan; `None` when its channel has ended.
#[derive(Debug)]
pub(crate) struct Reads(Mutex<Option<Vec<Weak<Ahead>>>>);

impl Reads {
    fn new() -> Reads {
        Reads(Mutex::new(Some(Vec::new())))
    }

    /// Adds reads that are to end with the channel. Returns false if it has ended.
    pub(crate) fn add(&self, ahead: &Arc<Ahead>) -> bool {
        let mut reads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reads.as_mut().map(|reads| reads.push(Arc::downgrade(ahead))).is_some()
    }

    fn end(&self) {
        let ended = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        ended.into_iter().flatten().filter_map(|ahead| ahead.upgrade()).for_each(|ahead| ahead.end());
    }
}

/// The open channels of a worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlanChannels(Arc<Mutex<Open>>);

#[derive(Debug, Default)]
struct Open {
    next: u64,
    channels: HashMap<u64, Arc<Reads>>,
}

impl PlanChannels {
    /// The reads of the channel that a request with these headers has opened.
    pub(crate) fn of(&self, headers: &HeaderMap) -> Option<Arc<Reads>> {
        let number = headers.get(HEADER)?.to_str().ok()?.parse().ok()?;
        self.lock().channels.get(&number).cloned()
    }

    /// A channel that is open until it is dropped.
    pub(crate) fn open(&self) -> PlanChannel {
        let reads = Arc::new(Reads::new());
        let mut open = self.lock();
        let number = open.next;
        open.next += 1;
        open.channels.insert(number, Arc::clone(&reads));
        PlanChannel { number, reads, all: self.clone() }
    }

    /// Whether there is an open channel.
    pub(crate) fn are_open(&self) -> bool {
        !self.lock().channels.is_empty()
    }

    /// A service whose requests open channels.
    pub(crate) fn serve<S>(&self, service: S) -> WithChannels<S> {
        WithChannels { service, channels: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open channel. Dropping it ends its reads.
#[derive(Debug)]
pub(crate) struct PlanChannel {
    number: u64,
    reads: Arc<Reads>,
    all: PlanChannels,
}

impl PlanChannel {
    /// Its reads.
    #[cfg(test)]
    pub(crate) fn reads(&self) -> &Arc<Reads> {
        &self.reads
    }
}

impl Drop for PlanChannel {
    fn drop(&mut self) {
        self.all.lock().channels.remove(&self.number);
        self.reads.end();
    }
}

/// A service whose requests open channels, which end when the bodies of the requests are dropped.
#[derive(Clone, Debug)]
pub(crate) struct WithChannels<S> {
    service: S,
    channels: PlanChannels,
}

impl<S: NamedService> NamedService for WithChannels<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Service<Request<Body>>> Service<Request<Body>> for WithChannels<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let channel = self.channels.open();
        let (mut head, body) = request.into_parts();
        // Instead of one that the client may have sent.
        head.headers.insert(HEADER, HeaderValue::from(channel.number));
        self.service.call(Request::from_parts(head, Body::new(OwningBody { body, _channel: channel })))
    }
}

/// The body of a request, with the channel that it is.
struct OwningBody {
    body: Body,
    _channel: PlanChannel,
}

impl http_body::Body for OwningBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        http_body::Body::poll_frame(Pin::new(&mut self.body), context)
    }

    fn is_end_stream(&self) -> bool {
        http_body::Body::is_end_stream(&self.body)
    }

    fn size_hint(&self) -> SizeHint {
        http_body::Body::size_hint(&self.body)
    }
}
