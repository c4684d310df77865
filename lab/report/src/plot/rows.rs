//! Bars and distributions. Each series of each group has a row, with its name at the left and its figure at the right.
//! On a logarithmic axis, a bar is drawn as a point on a line, because the length of a bar would mean nothing there.

use plotters::{
    coord::{Shift, ranged1d::Ranged},
    drawing::{DrawingArea, IntoDrawingArea},
    element::{Circle, PathElement, Rectangle, Text},
    style::{
        Color,
        text_anchor::{HPos, VPos},
    },
};
use quire_results::{
    Plot,
    statistics::{self, quantile},
};

use super::{
    axis::Axis,
    marker,
    series::{Panel, Point, Series, across},
    svg::{FINE, Ink, Sheet, text_style},
};
use crate::{number, words};

const WIDTH: i32 = 480;
/// The least and the largest width of the rows' names. Between these limits, the longest name determines the width. A
/// letter takes `LETTER` tenths of a unit.
const LEFT: (i32, i32) = (118, 200);
const LETTER: i32 = 59;
const RIGHT: i32 = 62;
const ABOVE: i32 = 4;
/// The height for the numbers at the axis.
const BELOW: i32 = 22;
/// The height of a group's name.
const HEAD: i32 = 20;
/// The distance between two groups.
const GAP: i32 = 8;

type Area = DrawingArea<Sheet, Shift>;
type Painted = Result<(), plotters::drawing::DrawingAreaErrorKind<std::convert::Infallible>>;

/// The rows of the cases with one value of the plot's main parameter (`Plot::across`).
struct Group<'a> {
    name: Option<String>,
    order: f64,
    rows: Vec<(&'a Series<'a>, &'a Point<'a>)>,
}

/// Draws one panel. With `spread` it draws every sample.
pub fn draw(panel: &Panel<'_>, plot: &Plot, experiment: &str, id: &str, spread: bool) -> String {
    let groups = groups(panel, plot, experiment);
    let row = if spread { 30 } else { 18 };
    let head = |g: &Group<'_>| if g.name.is_some() { HEAD } else { 0 };
    let tall = |g: &Group<'_>| head(g) + g.rows.len() as i32 * row + GAP;
    let height = ABOVE + groups.iter().map(tall).sum::<i32>() + BELOW;
    let sheet = Sheet::new(WIDTH, height);
    let all = panel.series.iter().flat_map(|s| &s.points);
    let values: Vec<f64> = if spread {
        all.flat_map(|p| p.samples.iter().copied()).collect()
    } else {
        all.flat_map(|p| [p.at.middle, p.at.low, p.at.high]).collect()
    };
    let axis = Axis::new(values, plot.log_up, 4);
    // Drawing cannot fail, because the sheet keeps no colours and writes to memory.
    let _ = paint(&sheet, panel, &groups, &axis, height, spread);
    sheet.finish(id, &plot.title, &super::told(panel, plot))
}

/// The groups in the order of their values of `Plot::across`.
fn groups<'a>(panel: &'a Panel<'a>, plot: &Plot, experiment: &str) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for series in &panel.series {
        for point in &series.points {
            let name = point.across.map(|p| words::parameter(experiment, &plot.across, p));
            match groups.iter_mut().find(|g| g.name == name) {
                Some(group) => group.rows.push((series, point)),
                None => groups.push(Group { name, order: across(point), rows: vec![(series, point)] }),
            }
        }
    }
    groups.sort_by(|a, b| a.order.total_cmp(&b.order));
    groups
}

fn paint(sheet: &Sheet, panel: &Panel<'_>, groups: &[Group<'_>], axis: &Axis, height: i32, spread: bool) -> Painted {
    let area = sheet.clone().into_drawing_area();
    let names = groups.iter().flat_map(|g| &g.rows).map(|(s, _)| name(s).chars().count() as i32);
    let left = (names.max().unwrap_or(0) * LETTER / 10 + 6).clamp(LEFT.0, LEFT.1);
    let span = (left * FINE, (WIDTH - RIGHT) * FINE);
    let at = |v: f64| axis.map(&v, span);
    let (top, bottom) = (ABOVE * FINE, (height - BELOW) * FINE);
    let mut last = i32::MIN;
    for &tick in axis.ticks() {
        let ink = if tick == axis.floor() { Ink::Axis } else { Ink::Grid };
        line(&area, (at(tick), top), (at(tick), bottom), ink)?;
        let label = number::value(tick, panel.unit);
        let room = (label.chars().count() as i32 * 7 + 8) * FINE;
        if last.saturating_add(room) <= at(tick) {
            last = at(tick);
            text(&area, &label, (at(tick), bottom + 6 * FINE), Ink::Tick, HPos::Center, VPos::Top)?;
        }
    }
    let row = (if spread { 30 } else { 18 }) * FINE;
    let mut y = top;
    for group in groups {
        if let Some(name) = &group.name {
            text(&area, &cut(name, 70), (0, y + HEAD * FINE / 2), Ink::Label, HPos::Left, VPos::Center)?;
            y += HEAD * FINE;
        }
        for (series, point) in &group.rows {
            let class = format!("series s-{} {}", series.side.name(), marker::dash_class(series.dash));
            let title = format!("{}: {}", series.title(), figure(point, panel.unit));
            let key = series.key();
            let attributes = [
                ("class", &class[..]),
                ("data-series", &key),
                ("data-side", series.side.name()),
                ("data-name", &series.name),
            ];
            sheet.begin(&attributes, Some(&title));
            let middle = y + row / 2;
            text(&area, &name(series), ((left - 6) * FINE, middle), Ink::Tick, HPos::Right, VPos::Center)?;
            if spread {
                samples(&area, point, middle, &at)?;
            } else {
                bar(sheet, &area, series, point, middle, axis, &at)?;
            }
            let end = if spread { (WIDTH - RIGHT) * FINE } else { at(edge(point)) };
            let value = number::value(point.at.middle, panel.unit);
            text(&area, &value, (end + 6 * FINE, middle), Ink::Figure, HPos::Left, VPos::Center)?;
            sheet.end();
            y += row;
        }
        y += GAP * FINE;
    }
    Ok(())
}

/// The value at the right end of a row.
fn edge(point: &Point<'_>) -> f64 {
    if point.at.high.is_finite() { point.at.high.max(point.at.middle) } else { point.at.middle }
}

fn bar(
    sheet: &Sheet,
    area: &Area,
    series: &Series<'_>,
    point: &Point<'_>,
    y: i32,
    axis: &Axis,
    at: &impl Fn(f64) -> i32,
) -> Painted {
    let (from, to) = (at(if axis.is_log() { axis.floor() } else { 0.0 }), at(point.at.middle));
    if axis.is_log() {
        line(area, (from, y), (to, y), Ink::Whisker)?;
    } else {
        area.draw(&Rectangle::new([(from, y - 60), (to, y + 60)], Ink::Fill.color().filled()))?;
    }
    if point.at.low.is_finite() && point.at.high.is_finite() && point.at.low < point.at.high {
        line(area, (at(point.at.low), y), (at(point.at.high), y), Ink::Line)?;
        for end in [at(point.at.low), at(point.at.high)] {
            line(area, (end, y - 30), (end, y + 30), Ink::Line)?;
        }
    }
    if axis.is_log() {
        sheet.path("mark", &marker::path(series.side, to, y, 40));
    }
    Ok(())
}

/// Draws all samples of a point, and the quartiles around the median.
fn samples(area: &Area, point: &Point<'_>, y: i32, at: &impl Fn(f64) -> i32) -> Painted {
    let mut sorted: Vec<f64> = point.samples.iter().copied().filter(|s| s.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    if let (Some(low), Some(middle), Some(high)) =
        (quantile(&sorted, 0.25), quantile(&sorted, 0.5), quantile(&sorted, 0.75))
    {
        area.draw(&Rectangle::new([(at(low), y - 80), (at(high), y + 80)], Ink::Band.color().filled()))?;
        line(area, (at(middle), y - 80), (at(middle), y + 80), Ink::Line)?;
    }
    for (i, sample) in sorted.iter().enumerate() {
        // Samples that are close to each other are shifted up and down, by the same amounts in every run.
        let shift = (i as i32 * 7 % 11 - 5) * 14;
        area.draw(&Circle::new((at(*sample), y + shift), 20, Ink::Dot.color().filled()))?;
    }
    Ok(())
}

fn line(area: &Area, from: (i32, i32), to: (i32, i32), ink: Ink) -> Painted {
    area.draw(&PathElement::new(vec![from, to], ink.color()))
}

fn text(area: &Area, text: &str, at: (i32, i32), ink: Ink, h: HPos, v: VPos) -> Painted {
    area.draw(&Text::new(text.to_owned(), at, text_style(ink, h, v)))
}

/// The name of a row, cut to the available width.
fn name(series: &Series<'_>) -> String {
    let most = ((LEFT.1 - 6) * 10 / LETTER) as usize;
    let title = series.title();
    cut(&title, most)
}

/// The beginning of a text that fits. The element's title has the whole text.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// The figures of a point in words.
pub fn figure(point: &Point<'_>, unit: &str) -> String {
    let (middle, spread) = number::interval(&point.at, |v| number::value(v, unit));
    let unit = if number::tells_unit(unit) || unit.is_empty() { String::new() } else { format!(" {unit}") };
    let samples = point.samples.len();
    match spread {
        None => format!("{middle}{unit} (one sample)"),
        Some(s) if s.is_empty() => format!("{middle}{unit} ({samples} samples, all alike)"),
        Some(s) => format!("{middle}{unit} ({s}, {})", statistics::told(samples)),
    }
}
