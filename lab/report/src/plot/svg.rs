//! A backend for the crate plotters that writes SVG for a page with themes. Elements get CSS classes where plotters has
//! colours. Elements can be grouped, and texts are written as text, not as shapes.

use std::{cell::RefCell, convert::Infallible, fmt::Write as _, rc::Rc};

use plotters::style::{Color, TextStyle};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
    text_anchor::{HPos, Pos, VPos},
};

use crate::escape::Escaped;

/// The number of plotters' integer units in one unit of the picture.
pub const FINE: i32 = 10;

/// The CSS class of an element, which the style sheet colours. The crate plotters gets a colour for each class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Ink {
    /// A grid line, behind all other elements.
    Grid,
    /// An axis.
    Axis,
    /// A number at an axis.
    Tick,
    /// A name at a row or an axis.
    Label,
    /// A figure beside a bar.
    Figure,
    /// A line or an outline of a series.
    Line,
    /// The interval around a figure of a series.
    Whisker,
    /// A filled area of a series.
    Fill,
    /// One of many samples.
    Dot,
    /// A translucent area.
    Band,
}

const INKS: [(Ink, &str); 10] = [
    (Ink::Grid, "grid"),
    (Ink::Axis, "axis"),
    (Ink::Tick, "tick"),
    (Ink::Label, "label"),
    (Ink::Figure, "figure"),
    (Ink::Line, "line"),
    (Ink::Whisker, "whisker"),
    (Ink::Fill, "fill"),
    (Ink::Dot, "dot"),
    (Ink::Band, "band"),
];

impl Ink {
    /// The colour that represents the class in plotters.
    pub fn color(self) -> plotters::style::RGBColor {
        plotters::style::RGBColor(0, 0, self as u8)
    }

    fn class(color: BackendColor) -> &'static str {
        INKS.iter().find(|(ink, _)| *ink as u8 == color.rgb.2).map_or("line", |(_, class)| class)
    }
}

/// The style of a text that is placed around its point. The page determines the font.
pub fn text_style(ink: Ink, h: HPos, v: VPos) -> TextStyle<'static> {
    TextStyle { font: ("sans-serif", 11 * FINE).into(), color: ink.color().to_backend_color(), pos: Pos::new(h, v) }
}

/// The picture that is being written. All clones write to the same picture.
#[derive(Clone)]
pub struct Sheet(Rc<RefCell<String>>, (u32, u32));

impl Sheet {
    /// Makes an empty sheet. Its size is in the picture's units.
    pub fn new(width: i32, height: i32) -> Sheet {
        Sheet(Rc::default(), ((width * FINE).max(1) as u32, (height * FINE).max(1) as u32))
    }

    /// Opens a group. Elements drawn until [`Sheet::end`] belong to the group. The values of attributes are escaped.
    pub fn begin(&self, attributes: &[(&str, &str)], title: Option<&str>) {
        let mut out = self.0.borrow_mut();
        out.push_str("<g");
        for (name, value) in attributes {
            let _ = write!(out, " {name}=\"{}\"", Escaped(value));
        }
        out.push('>');
        if let Some(title) = title {
            let _ = write!(out, "<title>{}</title>", Escaped(title));
        }
    }

    /// Closes the group.
    pub fn end(&self) {
        self.0.borrow_mut().push_str("</g>");
    }

    /// Writes a closed or open path with a class, for shapes that plotters does not have.
    pub fn path(&self, class: &str, data: &str) {
        let _ = write!(self.0.borrow_mut(), "<path class=\"{}\" d=\"{}\"/>", Escaped(class), Escaped(data));
    }

    /// The whole picture as SVG, with a name and a description for screen readers.
    pub fn finish(&self, id: &str, title: &str, about: &str) -> String {
        let (width, height) = self.1;
        let (width, height, id) = (width as i32 / FINE, height as i32 / FINE, Escaped(id));
        let (title, about, drawn) = (Escaped(title), Escaped(about), self.0.borrow());
        format!(
            "<svg class=\"plot\" role=\"img\" viewBox=\"0 0 {width} {height}\" aria-labelledby=\"{id}-t {id}-d\">\
             <title id=\"{id}-t\">{title}</title><desc id=\"{id}-d\">{about}</desc>{drawn}</svg>"
        )
    }
}

/// Converts a coordinate from plotters' units to the picture's units, as text.
pub fn unit(fine: i32) -> String {
    let (whole, part) = (fine.abs() / FINE, fine.abs() % FINE);
    let sign = if fine < 0 { "-" } else { "" };
    if part == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{part}") }
}

fn points(path: impl IntoIterator<Item = BackendCoord>) -> String {
    let mut text = String::new();
    for (x, y) in path {
        let _ = write!(text, "{}{},{}", if text.is_empty() { "" } else { " " }, unit(x), unit(y));
    }
    text
}

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

impl DrawingBackend for Sheet {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.1
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, point: BackendCoord, color: BackendColor) -> Drawn {
        let (x, y, class) = (unit(point.0), unit(point.1), Ink::class(color));
        let _ =
            write!(self.0.borrow_mut(), "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"0.1\" height=\"0.1\"/>");
        Ok(())
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        let class = Ink::class(style.color());
        let (a, b, c, d) = (unit(from.0), unit(from.1), unit(to.0), unit(to.1));
        let _ = write!(self.0.borrow_mut(), "<path class=\"{class}\" d=\"M{a},{b}L{c},{d}\"/>");
        Ok(())
    }

    fn draw_rect<S: BackendStyle>(&mut self, a: BackendCoord, b: BackendCoord, style: &S, fill: bool) -> Drawn {
        let class = Ink::class(style.color());
        let (x, y) = (unit(a.0.min(b.0)), unit(a.1.min(b.1)));
        let (w, h) = (unit((a.0 - b.0).abs()), unit((a.1 - b.1).abs()));
        let hollow = if fill { "" } else { " hollow" };
        let _ = write!(
            self.0.borrow_mut(),
            "<rect class=\"{class}{hollow}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\"/>"
        );
        Ok(())
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &S) -> Drawn {
        let class = Ink::class(style.color());
        let _ = write!(self.0.borrow_mut(), "<polyline class=\"{class}\" points=\"{}\"/>", points(path));
        Ok(())
    }

    fn draw_circle<S: BackendStyle>(&mut self, at: BackendCoord, radius: u32, style: &S, _: bool) -> Drawn {
        let class = Ink::class(style.color());
        let (x, y, r) = (unit(at.0), unit(at.1), unit(radius as i32));
        let _ = write!(self.0.borrow_mut(), "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"{r}\"/>");
        Ok(())
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &S) -> Drawn {
        let class = Ink::class(style.color());
        let _ = write!(self.0.borrow_mut(), "<polygon class=\"{class}\" points=\"{}\"/>", points(path));
        Ok(())
    }

    fn draw_text<T: BackendTextStyle>(&mut self, text: &str, style: &T, at: BackendCoord) -> Drawn {
        let class = Ink::class(style.color());
        let anchor = match style.anchor().h_pos {
            HPos::Left => "",
            HPos::Center => " text-anchor=\"middle\"",
            HPos::Right => " text-anchor=\"end\"",
        };
        let down = match style.anchor().v_pos {
            VPos::Top => " dy=\"0.8em\"",
            VPos::Center => " dy=\"0.35em\"",
            VPos::Bottom => "",
        };
        let (x, y, text) = (unit(at.0), unit(at.1), Escaped(text));
        let _ = write!(self.0.borrow_mut(), "<text class=\"{class}\" x=\"{x}\" y=\"{y}\"{anchor}{down}>{text}</text>");
        Ok(())
    }

    /// The result is an estimate, because only the browser knows its fonts.
    fn estimate_text_size<T: BackendTextStyle>(
        &self,
        text: &str,
        style: &T,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        Ok(((text.chars().count() as f64 * style.size() * 0.55) as u32, style.size() as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_keep_one_place() {
        assert_eq!(["0", "1.2", "-0.5", "30"].map(str::to_owned), [0, 12, -5, 300].map(unit));
    }

    #[test]
    fn text_in_a_picture_is_escaped() {
        let sheet = Sheet::new(10, 10);
        sheet.begin(&[("data-series", "\"><script>")], Some("<b>"));
        sheet.end();
        let svg = sheet.finish("i", "a<b", "c&d");
        assert!(!svg.contains("<script") && !svg.contains("<b>") && svg.contains("a&lt;b") && svg.contains("c&amp;d"));
    }
}
