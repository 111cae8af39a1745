//! Paths: lines, arcs and areas.

use std::f64::consts::TAU;

/// A shape with its classes.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    class: String,
    steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Move(f64, f64),
    Line(f64, f64),
    /// At most half a turn.
    Arc {
        radius: f64,
        is_clockwise: bool,
        x: f64,
        y: f64,
    },
    Close,
}

impl Path {
    fn new(class: impl Into<String>) -> Path {
        Path { class: class.into(), steps: Vec::new() }
    }

    /// A line through these points.
    pub(crate) fn line(class: impl Into<String>, points: &[(f64, f64)]) -> Path {
        let mut path = Path::new(class);
        path.steps = points.iter().map(|&(x, y)| Step::Line(x, y)).collect();
        if let Some(&(x, y)) = points.first() {
            path.steps[0] = Step::Move(x, y);
        }
        path
    }

    /// The area that these points enclose.
    pub(crate) fn area(class: impl Into<String>, points: &[(f64, f64)]) -> Path {
        let mut path = Path::line(class, points);
        path.steps.push(Step::Close);
        path
    }

    pub(crate) fn rectangle(class: impl Into<String>, x: f64, y: f64, width: f64, height: f64) -> Path {
        Path::area(class, &[(x, y), (x + width, y), (x + width, y + height), (x, y + height)])
    }

    pub(crate) fn circle(class: impl Into<String>, x: f64, y: f64, radius: f64) -> Path {
        let mut path = Path::line(class, &[(x - radius, y)]);
        let arc = |x| Step::Arc { radius, is_clockwise: true, x, y };
        path.steps.extend([arc(x + radius), arc(x - radius), Step::Close]);
        path
    }

    /// A sector of a ring between two shares of a turn, clockwise from the left; at most half a turn.
    pub(crate) fn ring(
        class: impl Into<String>,
        (x, y): (f64, f64),
        (inner, outer): (f64, f64),
        (from, to): (f64, f64),
    ) -> Path {
        let at = |radius: f64, turn: f64| (x - radius * (turn * TAU).cos(), y - radius * (turn * TAU).sin());
        let mut path = Path::line(class, &[at(outer, from)]);
        let (x, y) = at(outer, to);
        path.steps.push(Step::Arc { radius: outer, is_clockwise: true, x, y });
        let (x, y) = at(inner, to);
        path.steps.push(Step::Line(x, y));
        let (x, y) = at(inner, from);
        path.steps.extend([Step::Arc { radius: inner, is_clockwise: false, x, y }, Step::Close]);
        path
    }

    /// Strokes at 45 degrees that fill a rectangle.
    pub(crate) fn hatching(class: impl Into<String>, x: f64, y: f64, width: f64, height: f64) -> Path {
        const STEP: f64 = 5.0;
        let mut path = Path::new(class);
        let mut sum = STEP;
        // Points of a stroke have the same sum of x and y.
        while sum < width + height {
            let (right, down) = (sum.min(width), sum.min(height));
            path.steps.push(Step::Move(x + right, y + sum - right));
            path.steps.push(Step::Line(x + sum - down, y + down));
            sum += STEP;
        }
        path
    }

    /// Left, top, right and bottom of its points.
    #[cfg(test)]
    pub(crate) fn bounds(&self) -> (f64, f64, f64, f64) {
        let mut bounds = (f64::MAX, f64::MAX, f64::MIN, f64::MIN);
        for step in &self.steps {
            if let Step::Move(x, y) | Step::Line(x, y) | Step::Arc { x, y, .. } = step {
                bounds = (bounds.0.min(*x), bounds.1.min(*y), bounds.2.max(*x), bounds.3.max(*y));
            }
        }
        bounds
    }

    /// Writes the path, whose block is at `left`, `top` of the picture.
    pub(super) fn write(&self, svg: &mut String, (left, top): (f64, f64)) {
        if self.steps.is_empty() {
            return;
        }
        *svg += &format!("<path class=\"{}\" d=\"", self.class);
        let place = |x: f64, y: f64| format!("{} {}", rounded(left + x), rounded(top + y));
        for step in &self.steps {
            *svg += &match *step {
                Step::Move(x, y) => format!("M{}", place(x, y)),
                Step::Line(x, y) => format!("L{}", place(x, y)),
                Step::Arc { radius, is_clockwise, x, y } => {
                    let (radius, sweep) = (rounded(radius), u8::from(is_clockwise));
                    format!("A{radius} {radius} 0 0 {sweep} {}", place(x, y))
                }
                Step::Close => "z".to_owned(),
            };
        }
        *svg += "\"/>\n";
    }
}

/// Rounds to a tenth of a pixel.
fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0 + 0.0
}
