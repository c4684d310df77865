//! Curves: medians over a number, joined by lines, with their intervals.

use plotters::{
    chart::ChartBuilder,
    drawing::IntoDrawingArea,
    element::{PathElement, Polygon, Text},
    style::{
        Color,
        text_anchor::{HPos, VPos},
    },
};
use quire_results::{Plot, Side};

use super::{
    axis::Axis,
    marker,
    series::{Panel, Series, across},
    svg::{FINE, Ink, Sheet, text_style},
};
use crate::number;

/// The sizes of a single picture (`SIZE`), and of one of many adjacent pictures (`SMALL`).
const SIZE: (i32, i32) = (480, 280);
const SMALL: (i32, i32) = (230, 150);
/// The space for the numbers at the left and below, and for marks that extend beyond the other edges. The space at the
/// left grows with the length of the numbers.
const LEFT: i32 = 54;
const LETTER: i32 = 7;
const BELOW: i32 = 26;
const ABOVE: i32 = 10;
const RIGHT: i32 = 14;

type Area = plotters::drawing::DrawingArea<Sheet, plotters::coord::Shift>;
type Chart<'a> = plotters::chart::ChartContext<'a, Sheet, plotters::coord::cartesian::Cartesian2d<Axis, Axis>>;

/// Draws one panel in a single picture.
pub fn draw(panel: &Panel<'_>, plot: &Plot, id: &str) -> String {
    picture(panel, plot, id, SIZE)
}

/// Draws one panel in one of many adjacent pictures.
pub fn small(panel: &Panel<'_>, plot: &Plot, id: &str) -> String {
    picture(panel, plot, id, SMALL)
}

fn picture(panel: &Panel<'_>, plot: &Plot, id: &str, (width, height): (i32, i32)) -> String {
    let sheet = Sheet::new(width, height);
    let few = width == SMALL.0;
    let points = || panel.series.iter().flat_map(|s| &s.points);
    let up = points().flat_map(|p| [p.at.middle, p.at.low, p.at.high]);
    let along = || points().map(across).filter(|x| x.is_finite());
    let x =
        Axis::across(along(), plot.log_across, if few { 3 } else { 6 }).at(along().collect(), if few { 4 } else { 10 });
    let y = Axis::new(up, plot.log_up, if few { 3 } else { 5 });
    // Drawing cannot fail, because the sheet keeps no colours and writes to memory.
    let _ = paint(&sheet, panel, x, y);
    sheet.finish(id, &plot.title, &super::told(panel, plot))
}

type Painted = Result<(), plotters::drawing::DrawingAreaErrorKind<std::convert::Infallible>>;

fn paint(sheet: &Sheet, panel: &Panel<'_>, x: Axis, y: Axis) -> Painted {
    let area = sheet.clone().into_drawing_area();
    let letters = y.ticks().iter().map(|t| number::value(*t, panel.unit).chars().count()).max().unwrap_or(0);
    let left = LEFT.max((letters as i32).min(14) * LETTER + 10);
    let chart = ChartBuilder::on(&area)
        .margin_top(ABOVE * FINE)
        .margin_right(RIGHT * FINE)
        .x_label_area_size(BELOW * FINE)
        .y_label_area_size(left * FINE)
        .build_cartesian_2d(x.clone(), y.clone())?;
    scales(&area, &chart, panel.unit, &x, &y)?;
    let ends = (x.floor(), x.end());
    // Quire's curve is drawn last, above the others.
    for series in panel.series.iter().filter(|s| s.side != Side::Ours) {
        curve(sheet, &chart, series, panel.unit, ends)?;
    }
    for series in panel.series.iter().filter(|s| s.side == Side::Ours) {
        curve(sheet, &chart, series, panel.unit, ends)?;
    }
    Ok(())
}

/// Draws the grid lines behind the curves, and the numbers at the axes. The numbers are drawn on the whole sheet,
/// because plotters would move all points outside of the chart's own area to its edge.
fn scales(sheet: &Area, chart: &Chart<'_>, unit: &str, x: &Axis, y: &Axis) -> Painted {
    let area = chart.plotting_area();
    let (across, up) = area.get_pixel_range();
    let text = |h, v| text_style(Ink::Tick, h, v);
    let line = |from, to, ink: Ink| area.draw(&PathElement::new(vec![from, to], ink.color()));
    let (left, right) = (x.floor(), x.end());
    for &tick in y.ticks() {
        let ink = if tick == y.floor() { Ink::Axis } else { Ink::Grid };
        line((left, tick), (right, tick), ink)?;
        let pixel = area.map_coordinate(&(left, tick)).1;
        let label = number::value(tick, unit);
        sheet.draw(&Text::new(label, (across.start - 6 * FINE, pixel), text(HPos::Right, VPos::Center)))?;
    }
    let mut last = i32::MIN;
    for &tick in x.ticks() {
        let pixel = area.map_coordinate(&(tick, y.floor())).0;
        let label = number::short(tick);
        let room = (label.chars().count() as i32 * 7 + 8) * FINE;
        if last.saturating_add(room) > pixel {
            continue;
        }
        last = pixel;
        sheet.draw(&Text::new(label, (pixel, up.end + 9 * FINE), text(HPos::Center, VPos::Top)))?;
    }
    Ok(())
}

fn curve(sheet: &Sheet, chart: &Chart<'_>, series: &Series<'_>, unit: &str, ends: (f64, f64)) -> Painted {
    let area = chart.plotting_area();
    // A point without a number for the horizontal axis is a level, which is drawn over the whole width.
    let (points, levels): (Vec<_>, Vec<_>) = series.points.iter().partition(|p| across(p).is_finite());
    let class = format!("series s-{} {}", series.side.name(), marker::dash_class(series.dash));
    let key = series.key();
    let attributes =
        [("class", &class[..]), ("data-series", &key), ("data-side", series.side.name()), ("data-name", &series.name)];
    sheet.begin(&attributes, None);
    for point in levels {
        sheet.begin(&[("class", "point")], Some(&format!("{}: {}", series.title(), super::rows::figure(point, unit))));
        area.draw(&PathElement::new(vec![(ends.0, point.at.middle), (ends.1, point.at.middle)], Ink::Line.color()))?;
        sheet.end();
    }
    let bounded: Vec<_> = points.iter().filter(|p| p.at.low.is_finite() && p.at.high.is_finite()).collect();
    if bounded.len() > 1 && bounded.iter().any(|p| p.at.low < p.at.high) {
        let mut band: Vec<(f64, f64)> = bounded.iter().map(|p| (across(p), p.at.high)).collect();
        band.extend(bounded.iter().rev().map(|p| (across(p), p.at.low)));
        area.draw(&Polygon::new(band, Ink::Band.color().filled()))?;
    }
    if points.len() > 1 {
        let line: Vec<_> = points.iter().map(|p| (across(p), p.at.middle)).collect();
        area.draw(&PathElement::new(line, Ink::Line.color()))?;
    }
    for point in points {
        let title =
            format!("{}, {}: {}", series.title(), number::short(across(point)), super::rows::figure(point, unit));
        sheet.begin(&[("class", "point")], Some(&title));
        if point.at.low.is_finite() && point.at.high.is_finite() && point.at.low < point.at.high {
            let whisker = vec![(across(point), point.at.low), (across(point), point.at.high)];
            area.draw(&PathElement::new(whisker, Ink::Whisker.color()))?;
        }
        let (x, y) = area.map_coordinate(&(across(point), point.at.middle));
        sheet.path("mark", &marker::path(series.side, x, y, 35));
        sheet.end();
    }
    sheet.end();
    Ok(())
}
