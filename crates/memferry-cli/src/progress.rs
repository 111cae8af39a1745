//! A progress bar on standard error, if that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use memferry_query::load::Progress;

/// A progress bar; removed when dropped.
#[derive(Debug)]
pub(crate) struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// A bar for work of unknown size.
    pub(crate) fn new(what: &'static str) -> Bar {
        let style = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} %, {eta} left")
            .expect("the template is valid");
        Bar { bar: ProgressBar::new(0).with_style(style).with_message(what) }
    }

    /// A bar for `total` steps.
    pub(crate) fn of(what: &'static str, total: usize) -> Bar {
        let bar = Bar::new(what);
        bar.total(total as u64);
        bar
    }

    /// Removes the bar, also while others still hold it.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for Bar {
    fn total(&self, amount: u64) {
        self.bar.inc_length(amount);
    }

    fn advance(&self, amount: u64) {
        self.bar.inc(amount);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}
