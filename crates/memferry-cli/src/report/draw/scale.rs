//! The mapping from values to positions, and the ticks of axes.

use super::super::figure::{Axis, Scale};
use crate::output::size;

/// Maps values from `low` to `high` to positions from `start` to `end`.
pub(super) struct Mapping {
    scale: Scale,
    low: f64,
    high: f64,
    /// Distance between ticks of a linear scale.
    step: f64,
    start: f64,
    end: f64,
}

/// Largest number of steps; more ticks are unreadable.
const STEPS_MAX: f64 = 6.0;

impl Mapping {
    /// A mapping that covers all `values`, and 0 on a linear scale. `is_tight` ends a logarithmic scale at the values.
    pub(super) fn new(
        axis: &Axis,
        values: impl Iterator<Item = f64>,
        is_tight: bool,
        (start, end): (f64, f64),
    ) -> Mapping {
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if low > high { (1.0, 1.0) } else { (low, high) };
        let mut step = 1.0;
        let (low, high) = match axis.scale {
            Scale::Linear => {
                let (low, high) = (low.min(0.0), high.max(0.0));
                let high = if low == high { 1.0 } else { high };
                step = round(high - low);
                ((low / step).floor() * step, (high / step).ceil() * step)
            }
            _ if is_tight => (low, high),
            _ => (low.log2().floor().exp2(), high.log2().ceil().exp2()),
        };
        let high = if low == high { high * 2.0 } else { high };
        Mapping { scale: axis.scale, low, high, step, start, end }
    }

    pub(super) fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            _ => (value / self.low).log2() / (self.high / self.low).log2(),
        };
        self.start + share * (self.end - self.start)
    }

    /// The value at which bars begin: 0, or 1 on a logarithmic scale.
    pub(super) fn base(&self) -> f64 {
        match self.scale {
            Scale::Linear => 0.0,
            _ => 1.0_f64.clamp(self.low, self.high),
        }
    }

    /// Positions and labels of these values, ascending.
    pub(super) fn ticks_at(&self, values: &[f64]) -> Vec<(f64, String)> {
        let mut ticks: Vec<_> =
            values.iter().map(|&value| (self.at(value), label(self.scale, value))).collect();
        ticks.sort_by(|one, other| one.0.total_cmp(&other.0));
        ticks
    }

    /// Positions and labels of the ticks.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let tick = |value: f64| (self.at(value), label(self.scale, value));
        if self.scale == Scale::Linear {
            let count = ((self.high - self.low) / self.step).round() as i64;
            let first = (self.low / self.step).round();
            return (0..=count).map(|index| tick((first + index as f64) * self.step)).collect();
        }
        let (first, last) = (self.low.log2().ceil(), self.high.log2().floor());
        let every = ((last - first) / STEPS_MAX).ceil().max(1.0);
        let count = ((last - first) / every) as i64;
        (0..=count).map(|index| tick((first + index as f64 * every).exp2())).collect()
    }
}

/// The smallest step of 1, 2 or 5 times a power of ten with at most [`STEPS_MAX`] steps in the range.
fn round(range: f64) -> f64 {
    let least = range / STEPS_MAX;
    let power = 10.0_f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= least * 0.999);
    factor.unwrap_or(10.0) * power
}

pub(super) fn label(scale: Scale, value: f64) -> String {
    match scale {
        Scale::Bytes => size(value as u64),
        _ => short(value),
    }
}

/// About three digits, with the same number of decimals in a column.
pub(super) fn fixed(value: f64) -> String {
    let decimals = match value.abs() {
        value if value > 0.0 && value < 0.01 => return short(value),
        value if value < 10.0 => 2,
        value if value < 1000.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}").replace('-', "\u{2212}")
}

/// `+1.9 %`; 0 has no sign.
pub(in super::super) fn percent(error: f64) -> String {
    let text = format!("{error:+.1} %").replace('-', "\u{2212}");
    if text.contains(|c: char| ('1'..='9').contains(&c)) { text } else { "0 %".to_owned() }
}

/// About three digits, without trailing zeros.
pub(super) fn short(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 => 0,
        small if small < 0.01 => return format!("{value:.1e}").replace('-', "\u{2212}"),
        value if value < 1.0 => 3,
        value if value < 10.0 => 2,
        value if value < 1000.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.decimals$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    text.replace('-', "\u{2212}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(scale: Scale, values: &[f64]) -> Vec<String> {
        let mapping = Mapping::new(&Axis::new("", scale), values.iter().copied(), false, (0.0, 100.0));
        let ticks = mapping.ticks();
        assert!(ticks.iter().all(|(at, _)| (-0.001..100.001).contains(at)), "{ticks:?}");
        assert!(values.iter().all(|&value| (-0.001..100.001).contains(&mapping.at(value))));
        ticks.into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(Scale::Linear, &[159.7]), ["0", "50", "100", "150", "200"]);
        assert_eq!(ticks(Scale::Linear, &[-3.0, 9.0]), ["−4", "−2", "0", "2", "4", "6", "8", "10"]);
        assert_eq!(ticks(Scale::Linear, &[0.0]), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(ticks(Scale::Log, &[0.35, 3.2]), ["0.25", "0.5", "1", "2", "4"]);
        assert_eq!(
            ticks(Scale::Bytes, &[1024.0, 1048576.0]),
            ["1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB"]
        );
        assert_eq!(ticks(Scale::Log, &[]), ["1", "2"]);
    }

    #[test]
    fn errors_have_signs() {
        let cases =
            [(0.04, "0 %"), (-0.04, "0 %"), (-1.94, "−1.9 %"), (12.0, "+12.0 %"), (-100.0, "−100.0 %")];
        for (error, expected) in cases {
            assert_eq!(percent(error), expected);
        }
        assert_eq!(
            [fixed(1.4), fixed(0.0), fixed(-156.67), fixed(0.001)],
            ["1.40", "0.00", "−156.7", "1.0e−3"]
        );
    }

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (156.67, "156.7"),
            (-1.9, "−1.9"),
            (30.0, "30"),
            (9704785.2, "9704785"),
            (0.001, "1.0e−3"),
        ];
        for (value, expected) in cases {
            assert_eq!(short(value), expected);
        }
    }
}
