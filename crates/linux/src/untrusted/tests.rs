use proptest::prelude::*;

use super::*;

/// Output of `printf %b`.
fn bytes_again(shown: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::new(), shown.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match (first, after) {
            (b'\\', [b'\\', after @ ..]) => {
                bytes.push(b'\\');
                rest = after;
            }
            (b'\\', [b'x', high, low, after @ ..]) => {
                bytes.push(u8::from_str_radix(std::str::from_utf8(&[*high, *low]).ok()?, 16).ok()?);
                rest = after;
            }
            (b'\\', _) => return None,
            (byte, _) => bytes.push(*byte),
        }
    }
    Some(bytes)
}

/// True for characters that control a terminal, begin a line, hide, or change the direction of writing.
fn is_dangerous(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(letter, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[test]
fn each_dangerous_character_is_escaped_everywhere_and_no_letter_is() {
    let mut dangerous = 0;
    for letter in (0..=0x10_ffff).filter_map(char::from_u32).filter(|letter| is_dangerous(*letter)) {
        dangerous += 1;
        let name = format!("a{letter}z");
        for shown in [Untrusted::from(name.clone()).to_string(), visible(&name).into_owned()] {
            assert!(shown.starts_with(r"a\") && shown.ends_with('z') && shown.is_ascii(), "{letter:?}: {shown}");
        }
    }
    assert!(dangerous > 200, "{dangerous}");
    for name in
        ["qemu-kvm", "Web Content", "größer", "日本語", "हिन्दी", "naïve: e\u{301}", "(sd-pam)", "a'b\"c", "kworker/0:1"]
    {
        assert_eq!((Untrusted::from(name).to_string(), visible(name)), (name.to_owned(), Cow::Borrowed(name)));
    }
}

#[test]
fn a_hostile_name_is_shown_in_full_and_moves_nothing() {
    let name = Untrusted::new(b"lib\x1b]0;pwned\x07\nPID 1 root\r\xff\xc2\x9b31m\xe2\x80\xae\\x41.so");
    let shown = r"lib\x1b]0;pwned\x07\x0aPID 1 root\x0d\xff\xc2\x9b31m\xe2\x80\xae\\x41.so";
    assert_eq!(name.to_string(), shown);
    assert_eq!(format!("{name:?}"), format!("\"{shown}\""));
    assert_eq!(serde_json::to_value(&name).unwrap(), shown);
}

#[test]
fn what_was_made_visible_stays_as_it_is_and_may_stand_in_json() {
    assert_eq!(visible("a\u{9b}\u{1b}\n\u{e0001}b\\c"), r"a\u009b\u001b\u000a\udb40\udc01b\c");
    assert_eq!(visible_but("a\tb\nc\r", &['\n', '\t']), "a\tb\nc\\u000d");
    let json = visible("\"a\u{9b}\u{202e}\u{e0001}\"").into_owned();
    assert_eq!(serde_json::from_str::<String>(&json).unwrap(), "a\u{9b}\u{202e}\u{e0001}");
}

#[test]
fn a_name_is_padded_as_text_is() {
    assert_eq!(format!("{:>6}|{:<6}|", Untrusted::from("a\n"), Untrusted::from("b")), r" a\x0a|b     |");
}

#[test]
fn a_name_that_is_no_text_is_one_and_no_other_name_is_the_same() {
    assert_eq!(text_of(b"web".to_vec()), "web");
    for bytes in [&b"\xff"[..], b"a\x80b\xf4\x8f\xbf\xbf", "\u{10ffff}".as_bytes(), "\u{fffd}".as_bytes()] {
        let text = text_of(bytes.to_vec());
        assert_eq!(&*bytes_of(&text), bytes);
        assert_eq!(Untrusted::from(text).bytes(), bytes);
    }
    assert_ne!(text_of(b"\xff".to_vec()), text_of("\u{10ffff}".into()));
    assert_eq!(
        Untrusted::from("\u{10ffff}").to_string(),
        r"\xff",
        "a character that stands for a byte is shown as the byte"
    );
}

proptest! {
    #[test]
    fn any_bytes_are_text_and_bytes_again(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0xf4), Just(0x8f), Just(0xbf)], 0..100)
    ) {
        let text = text_of(bytes.clone());
        prop_assert_eq!(bytes_of(&text).into_owned(), bytes);
    }

    #[test]
    fn any_bytes_are_shown_without_a_dangerous_character_and_can_be_had_again(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'\\'), Just(b'x'), Just(0x1b), Just(0xe2)], 0..200)
    ) {
        let shown = Untrusted::new(bytes.clone()).to_string();
        prop_assert!(!shown.chars().any(is_dangerous), "{}", shown);
        prop_assert!(shown.len() <= bytes.len() * 4);
        prop_assert_eq!(bytes_again(&shown), Some(bytes));
    }

    #[test]
    fn any_text_is_shown_without_a_dangerous_character_and_twice_is_as_once(
        text in prop_oneof!["(?s).{0,100}", "[\u{10ff70}-\u{10ffff}a]{0,20}"]
    ) {
        let name = Untrusted::from(text.clone()).to_string();
        prop_assert!(!name.chars().any(is_dangerous));
        prop_assert_eq!(bytes_again(&name), Some(bytes_of(&text).into_owned()));
        let shown = visible(&text);
        prop_assert!(!shown.chars().any(is_dangerous));
        prop_assert!(shown.len() <= text.len() * 6);
        prop_assert_eq!(visible(&shown), shown.clone());
        prop_assert_eq!(visible(&name), name.as_str(), "a name within a message stays as it is");
    }
}
