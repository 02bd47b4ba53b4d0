# Targets for users: `make` alone lists them. `cargo xtask --help` lists the tasks of developers.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo

TARGET := $(or $(CARGO_TARGET_DIR),target)
# Folder of the programs to install.
BUILT ?= $(TARGET)/release
LIBDIR ?= $(PREFIX)/lib
ZSH_COMPLETIONS ?= $(PREFIX)/share/zsh/site-functions
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
RUST_VERSION := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

FUZZ_SECONDS ?= 300
FUZZ_RUN ?= $(shell date +%s)

# Debian's names. What of these is installed already is not asked for again.
BUILD_PACKAGES := gcc libc6-dev pkg-config libelf-dev zlib1g-dev
DEMO_PACKAGES := redis-tools
# A Java compiler and a Go compiler are needed too, whoever made them.
BENCH_PACKAGES = $(DEMO_PACKAGES) libjemalloc2 sqlite3 python3-numpy valgrind libmemcached-dev libevent-dev dpkg-dev patch make \
    vmtouch nocache rsync nginx-light wrk postgresql \
    $(shell command -v javac >/dev/null || echo default-jdk-headless) \
    $(shell command -v go >/dev/null || [ -x /usr/local/go/bin/go ] || echo golang-go)
PACKAGE_PACKAGES := dpkg-dev rpm make
TEST_PACKAGES := redis-tools openssl sqlite3 python3-numpy clang clang-format llvm qemu-system-x86 bsdutils musl-tools python3 stress-ng g++ \
    libjemalloc2 libmimalloc2.0 libgoogle-perftools4 make patch libevent-dev systemd btrfs-progs erofs-utils debootstrap chromium \
    $(PACKAGE_PACKAGES)

.PHONY: help rust deps deps-demo deps-bench deps-package deps-test build demo check test fuzz bench package install

help:
	@echo 'make demo      two minutes with a real Redis: what masu does for it, in one table (root)'
	@echo 'make check     all checks without root and virtual machines: rules, format, lints, unit tests, fuzz targets, documentation'
	@echo 'make test      all tests: checks, live tests here (root) and on two kernels of Debian under QEMU'
	@echo 'make fuzz      every fuzz target for FUZZ_SECONDS ($(FUZZ_SECONDS)), on all processors; FUZZ_TARGETS, FUZZ_EXECUTIONS and FUZZ_RUN say which and how'
	@echo 'make bench     every published claim, measured beside its baseline (root; takes long)'
	@echo 'make build     builds $(TARGET)/release/masu, and resctrl-emulator beside it'
	@echo 'make package   builds masu as .deb and .rpm, in $(TARGET)/package'
	@echo 'make install   installs masu, resctrl-emulator, libmasu, masu.h, masu.pc, man pages, completions and systemd units below PREFIX ($(PREFIX)); knows DESTDIR'
	@echo 'make deps      installs what a build needs: $(BUILD_PACKAGES)'
	@echo 'The targets above install by themselves what they need and find missing (Debian).'

# Installs those of $(1) that are missing; says nothing when none is.
define install_missing
	@missing=; \
	for package in $(1); do \
	    dpkg-query --show --showformat '$${db:Status-Status}' $$package 2>/dev/null | grep -qx installed \
	        || missing="$$missing $$package"; \
	done; \
	if [ -n "$$missing" ] && ! command -v apt-get >/dev/null; then \
	    echo "This is not Debian; please see to it that these are installed:$$missing" >&2; \
	elif [ -n "$$missing" ]; then \
	    echo "installing$$missing"; \
	    $(SUDO) apt-get update -qq || true; \
	    $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing >/dev/null; \
	fi
endef

rust:
	@have=$$($(CARGO) --version 2>/dev/null | sed 's/^cargo \([0-9.]*\).*/\1/'); \
	if [ "$$(printf '%s\n' '$(RUST_VERSION)' "$$have" | sort -V | head -n 1)" != '$(RUST_VERSION)' ]; then \
	    echo "masu needs Rust $(RUST_VERSION) or newer and finds $${have:-no cargo}: install it with rustup (https://rustup.rs)" >&2; \
	    exit 1; \
	fi

deps: rust
	$(call install_missing,$(BUILD_PACKAGES))

deps-demo: deps
	$(call install_missing,$(DEMO_PACKAGES))

deps-bench: deps
	$(call install_missing,$(BENCH_PACKAGES))

deps-package: deps
	$(call install_missing,$(PACKAGE_PACKAGES))

deps-test: deps
	$(call install_missing,$(TEST_PACKAGES))

build: deps
	@$(CARGO) build --release --package masu --package resctrl-emulator

demo: deps-demo
	@$(CARGO) build --release --bin masu --bin masu-bench
	@$(SUDO) $(TARGET)/release/masu-bench demo

check: deps-test
	@$(CARGO) xtask check

test: deps-test
	@$(CARGO) xtask test

# Another run number, other inputs. Ctrl-C ends it with what was counted so far.
fuzz: deps
	@$(CARGO) build --profile fuzz --package fuzz --bin fuzz
	@$(TARGET)/fuzz/fuzz run $(FUZZ_TARGETS) --run $(FUZZ_RUN) $(if $(FUZZ_EXECUTIONS),--executions $(FUZZ_EXECUTIONS)) \
	    --seconds $(FUZZ_SECONDS) $(if $(FUZZ_SAVE),--save $(FUZZ_SAVE))

bench: deps-bench
	@$(CARGO) build --release
	-@integrations/memcached/build --plain && integrations/memcached/build
	@$(SUDO) $(TARGET)/release/masu-bench all

package: deps-package build
	@integrations/package/build

# Not built anew when it is there: `make build && sudo make install` builds as the user. libmasu-*.so are what `masu run` loads
# into programs; libmasu.so is for programs that link with it, by the name in its soname.
install:
	@[ -x $(BUILT)/masu ] && [ -x $(BUILT)/resctrl-emulator ] || $(MAKE) --no-print-directory build
	install -D -m 755 $(BUILT)/masu $(DESTDIR)$(PREFIX)/bin/masu
	install -m 755 $(BUILT)/resctrl-emulator $(DESTDIR)$(PREFIX)/bin
	install -d $(DESTDIR)$(PREFIX)/lib/masu $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(PREFIX)/include \
	    $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man3
	install -m 644 $(BUILT)/libmasu-*.so $(DESTDIR)$(PREFIX)/lib/masu
	install -m 644 $(BUILT)/libmasu.so $(DESTDIR)$(LIBDIR)/libmasu.so.$(VERSION)
	ln -sf libmasu.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libmasu.so.0
	ln -sf libmasu.so.0 $(DESTDIR)$(LIBDIR)/libmasu.so
	install -m 644 $(BUILT)/libmasu.a $(DESTDIR)$(LIBDIR)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' \
	    crates/hugepages/libmasu/masu.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/masu.pc
	chmod 644 $(DESTDIR)$(LIBDIR)/pkgconfig/masu.pc
	install -m 644 crates/hugepages/libmasu/include/masu.h $(DESTDIR)$(PREFIX)/include
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	@for unit in masu.service masu-aging.service masu@.service; do \
	    sed 's|@PREFIX@|$(PREFIX)|' integrations/systemd/$$unit >$(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit && \
	    chmod 644 $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit || exit 1; \
	done
	install -m 644 man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 man/*.3 $(DESTDIR)$(PREFIX)/share/man/man3
	@for completion in bash:$(PREFIX)/share/bash-completion/completions/masu zsh:$(ZSH_COMPLETIONS)/_masu \
	    fish:$(PREFIX)/share/fish/vendor_completions.d/masu.fish; do \
	    $(BUILT)/masu completions $${completion%%:*} | install -D -m 644 /dev/stdin $(DESTDIR)$${completion#*:} || exit 1; \
	done
	@[ -n '$(DESTDIR)' ] || ldconfig || echo 'Run ldconfig as root, so that programs find libmasu.so.0.'
