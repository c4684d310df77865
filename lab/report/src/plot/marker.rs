//! The marker of each side (design or kernel), and the dashes that distinguish lines of one side. Markers and dashes
//! make a plot readable without colours.

use quire_results::Side;

use super::svg::{FINE, unit};

/// The number of different dashes. Further series reuse them.
pub const DASHES: usize = 6;

/// The marker of a design or kernel around a point, as an SVG path. `radius` and the coordinates are in plotters'
/// units.
pub fn path(side: Side, x: i32, y: i32, radius: i32) -> String {
    let r = radius;
    let corners = |points: &[(i32, i32)]| {
        let mut data = String::new();
        for (i, (dx, dy)) in points.iter().enumerate() {
            data += &format!("{}{},{}", if i == 0 { "M" } else { "L" }, unit(x + dx), unit(y + dy));
        }
        data + "Z"
    };
    match side {
        Side::Ours => {
            let (r, d) = (unit(r), unit(2 * r));
            format!("M{},{}m-{r},0a{r},{r} 0 1,0 {d},0a{r},{r} 0 1,0 -{d},0Z", unit(x), unit(y))
        }
        Side::Before => {
            let r = r * 9 / 10;
            corners(&[(-r, -r), (r, -r), (r, r), (-r, r)])
        }
        Side::After => corners(&[(0, -r * 12 / 10), (r * 11 / 10, r * 8 / 10), (-r * 11 / 10, r * 8 / 10)]),
        Side::Linux => corners(&[(0, -r * 13 / 10), (r * 13 / 10, 0), (0, r * 13 / 10), (-r * 13 / 10, 0)]),
        Side::LinuxLarge => corners(&[(-r * 11 / 10, -r * 8 / 10), (r * 11 / 10, -r * 8 / 10), (0, r * 12 / 10)]),
        Side::Plain => {
            let (a, b) = (r * 12 / 10, r * 4 / 10);
            corners(&[
                (-b, -a),
                (b, -a),
                (b, -b),
                (a, -b),
                (a, b),
                (b, b),
                (b, a),
                (-b, a),
                (-b, b),
                (-a, b),
                (-a, -b),
                (-b, -b),
            ])
        }
        Side::Limit => corners(&[(-r, -r * 3 / 10), (r, -r * 3 / 10), (r, r * 3 / 10), (-r, r * 3 / 10)]),
    }
}

/// The CSS class of a dash.
pub fn dash_class(dash: usize) -> String {
    format!("dash-{}", dash % DASHES)
}

/// A small picture of a side, for legends.
pub fn sample(side: Side) -> String {
    format!(
        "<svg class=\"sample s-{}\" viewBox=\"0 0 22 12\" aria-hidden=\"true\"><path class=\"line\" d=\"M1,6L21,6\"/><path class=\"mark\" d=\"{}\"/></svg>",
        side.name(),
        path(side, 11 * FINE, 6 * FINE, 4 * FINE)
    )
}

/// A small picture of a dash, for legends.
pub fn dash(dash: usize) -> String {
    format!(
        "<svg class=\"sample {}\" viewBox=\"0 0 28 12\" aria-hidden=\"true\"><path class=\"line\" d=\"M1,6L27,6\"/></svg>",
        dash_class(dash)
    )
}
