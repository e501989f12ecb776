// The storybook's words, as sources for Grammar (its header explains the notation). The parts are
// joined into one grammar; a rule or table of one part may use those of any other.
#pragma once

#include <string_view>

namespace mr::story {

extern const std::string_view kStorybookPeople;   // heroes, traits, pets
extern const std::string_view kStorybookPlaces;   // where they live, who helps there, where to look
extern const std::string_view kStorybookPhrases;  // openings, greetings, thanks, feelings, bedtime
extern const std::string_view kStorybookPlotsOfTrying;   // learn, fear, wonder, grow
extern const std::string_view kStorybookPlotsOfThings;   // lost, gift, broken, prize
extern const std::string_view kStorybookPlotsOfFriends;  // friend, quarrel, rescue

}  // namespace mr::story
