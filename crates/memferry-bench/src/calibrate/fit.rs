//! Straight lines through times.

/// A time that grows with the size: `base_s + size_bytes / bytes_per_s`.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Line {
    /// The fixed time; not negative.
    pub base_s: f64,
    /// The rate; positive.
    pub bytes_per_s: f64,
}

impl Line {
    /// Fits `(size_bytes, seconds)` by least squares of *relative* errors, so that 4 KiB count as much as 16 MiB. `None` with
    /// fewer than two sizes, or if larger sizes do not take longer.
    pub fn through(points: &[(f64, f64)]) -> Option<Line> {
        // Minimises the sum of ((base + slope x size) / time - 1)^2: a linear problem in 1 / time and size / time.
        let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
            points.iter().map(|&(size, time)| of(1.0 / time, size / time)).sum()
        };
        let (aa, ab, bb) = (sum(&|a, _| a * a), sum(&|a, b| a * b), sum(&|_, b| b * b));
        let (a, b) = (sum(&|a, _| a), sum(&|_, b| b));
        let determinant = aa * bb - ab * ab;
        let (mut base_s, mut slope) = ((a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant);
        if base_s < 0.0 {
            // The best line through the origin.
            (base_s, slope) = (0.0, b / bb);
        }
        // For a single size the determinant is 0 up to rounding.
        let is_determined = determinant > 1e-9 * aa * bb;
        (is_determined && slope > 0.0 && base_s.is_finite() && slope.is_finite())
            .then(|| Line { base_s, bytes_per_s: 1.0 / slope })
    }

    /// The time of a size.
    pub fn at_s(&self, size_bytes: f64) -> f64 {
        self.base_s + size_bytes / self.bytes_per_s
    }
}

/// Minimum, mean and maximum of values.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Spread {
    /// The minimum.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The maximum.
    pub max: f64,
}

impl Spread {
    /// The spread of values; `None` without values.
    pub fn of(figures: &[f64]) -> Option<Spread> {
        let min = figures.iter().copied().reduce(f64::min)?;
        let max = figures.iter().copied().reduce(f64::max)?;
        Some(Spread { min, mean: figures.iter().sum::<f64>() / figures.len() as f64, max })
    }

    /// Merges two spreads by `better`.
    pub(super) fn or_better(self, other: Spread, better: fn(f64, f64) -> f64) -> Spread {
        let Spread { min, mean, max } = self;
        Spread { min: better(min, other.min), mean: better(mean, other.mean), max: better(max, other.max) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_that_are_none() {
        assert_eq!(Line::through(&[]), None);
        assert_eq!(Line::through(&[(4096.0, 1e-6), (4096.0, 2e-6)]), None, "one size");
        assert_eq!(Line::through(&[(1.0, 2.0), (1000.0, 1.0)]), None, "larger and faster");
    }

    #[test]
    fn no_time_is_negative() {
        // The larger, the slower for each byte: the line would begin below 0.
        let line = Line::through(&[(1e3, 1e-6), (1e6, 2e-3)]).unwrap();
        assert_eq!(line.base_s, 0.0);
        assert!((0.5e9..1e9).contains(&line.bytes_per_s), "{line:?}");
    }

    #[test]
    fn a_small_size_counts_as_much_as_a_large_one() {
        // 10 % too slow each, at sizes that are far apart: the line goes through the middle of both.
        let exact = Line { base_s: 1e-7, bytes_per_s: 1e10 };
        let off = |size: f64, factor: f64| (size, exact.at_s(size) * factor);
        let line = Line::through(&[off(1e3, 1.1), off(1e3, 0.9), off(1e8, 1.1), off(1e8, 0.9)]).unwrap();
        for size in [1e3, 1e8] {
            assert!((line.at_s(size) / exact.at_s(size) - 1.0).abs() < 0.02, "{line:?} at {size}");
        }
    }

    #[test]
    fn spreads() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[2.0, 1.0, 6.0]), Some(Spread { min: 1.0, mean: 3.0, max: 6.0 }));
    }

    proptest! {
        #[test]
        fn exact_times_give_their_line_back(
            base_s in 1e-8..1e-4, bytes_per_s in 1e8..1e11,
            sizes in prop::collection::btree_set(1_u32..1 << 28, 3..9),
        ) {
            let exact = Line { base_s, bytes_per_s };
            let points: Vec<_> =
                sizes.iter().map(|&size| (f64::from(size), exact.at_s(f64::from(size)))).collect();
            let line = Line::through(&points);
            for (size, time) in points {
                prop_assert!((line.unwrap().at_s(size) / time - 1.0).abs() < 1e-3, "{line:?}, {exact:?}");
            }
        }
    }
}
