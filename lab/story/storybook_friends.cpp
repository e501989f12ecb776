#include "lab/story/storybook_content.h"

namespace mr::story {

// Plots about another character: found, quarrelled with and won back, or brought home.
const std::string_view kStorybookPlotsOfFriends = R"(
# ---- a new friend -------------------------------------------------------------------------------
@rule plot_friend
// {friend_wish} // {friend_new} {friend_try} {despair} // {meet} {talk} {friend_tip} //
  {friend_bring} {friend_yes} {pet.may_joy} // {friend_end} {bedtime}

@rule friend_wish
But sometimes {hero} felt lonely. "I wish I had a friend to play with," {hero.they} said.
Only one thing was missing. {hero} wished on every star for a friend to play with.
But no other children lived nearby, and {hero} wished for a friend.

@rule friend_new
{one_day}, a new girl named {pal=girl!hero} came to {place.the}. She was {pastime}.
{one_day}, a new boy named {pal=boy!hero} came to {place.the}. He was {pastime}.

@rule pastime
building a tower of stones
drawing in the dust with a stick
reading under a tree
bouncing a green ball
watching the ants
making a crown of leaves
humming a strange little song
feeding a duck
counting the clouds
digging a very deep hole
teaching a crow to count
walking along the top of a wall
mending a bicycle
floating sticks in a puddle

@rule friend_try
{hero} said hello, but so quietly that {pal} did not hear.
{hero} wanted to speak, but no words came, and {hero.they} hid behind a barrel.
{hero} did a funny dance, but {hero.they} tripped over a bucket and ran away.

@rule friend_tip
"Maybe {pal} is shy too," said the {helper}. "{share=share.tip}."
"Every friend was a stranger once," said the {helper}. "{share=share.tip}."
"A small gift opens a big door," said the {helper}. "{share=share.tip}."

@rule friend_bring
So {hero} went back {share.with}.
The next day, {hero} came {share.with}.

@rule friend_yes
"Would you like to {share.play}?" {hero.they} asked. {pal}'s face lit up. "[Yes, please|I would
  love to|I
  thought nobody would ever ask]!" {pal.they} said.
{pal} looked up and smiled. "I was too shy to say hello," said {pal}. And soon the two of them
  began to
  {share.play}.

@rule friend_end
From that day on, {hero} and {pal} {share.after}.
{hero}'s wish had come true, and so had {pal}'s.
Whenever someone new came, {hero} and {pal} were the first to say hello.
{hero} and {pal} stayed friends [forever|until their hair was white|all their lives].

@table share: tip | with | play | after
Take two apples and offer one | with two red apples | eat apples and spit the seeds
  | met under the apple tree every day
Ask for help with something big | with a wagon that needed pushing | push the wagon
  | took turns riding down the lane
Bring a game that needs two | with a jump rope that was much too long for one | jump rope
  | jumped rope until the sun went down
Show what you love best | with a jar of shiny beetles | look at the beetles | collected beetles
  and gave them all names
Make a boat from paper, and then one more | with two paper boats | sail the boats
  | sent their boats out to sea each spring
Tell a riddle | with the best riddle in the world | hear a riddle | told each other a riddle each
  morning
Take along some chalk | with a box of colored chalk | draw a dragon | covered the whole street
  with dragons
Carry over a warm pie | with a warm blueberry pie | share the pie | had blue teeth and happy tummies
Blow a few soap bubbles that way | with a cup of soap bubbles | blow bubbles
  | filled the whole sky with bubbles
Build something together | with a pile of old boards | build a hut | had a secret hut with a flag
  on top
Lend out the thing you are proudest of | with a telescope as long as an arm | look at the moon
  | knew every crater of the moon by name
Dig a hole and wait for questions | with two small shovels | dig for treasure | dug up three bones
  and a spoon
Hum until somebody hums along | with a song that had no end yet | sing it together
  | sang the song in every weather
Walk a dog that walks in circles | with a dog on a very long leash | walk the dog | walked the dog
  twice around the world, or so it felt
Let a kite fall into the right garden | with a kite that had two strings | fly the kite
  | made the biggest kite in the county
Bake one cookie too many | with seven cookies on a plate | eat the seventh cookie | baked on every
  rainy day
Draw half of a picture | with half a picture of a ship | draw the other half | sailed away on that
  ship in their dreams

# ---- a quarrel ----------------------------------------------------------------------------------
@rule plot_quarrel
// {quarrel_pal} {quarrel_start} // {quarrel_alone} {quarrel_wish} //
  {meet} {talk} {quarrel_tip} // {quarrel_go} {quarrel_peace} {pet.may_joy} // {quarrel_end}
  {bedtime}

@rule quarrel_pal
{hero}'s best friend [in the world|of all] was [a girl named {pal=girl!hero}|a boy named
  {pal=boy!hero}].
{hero} and {hero.their} friend {pal_name} played together every day.

@rule pal_name
{pal=girl!hero}
{pal=boy!hero}

@rule quarrel_start
But {one_day_small}, they had a quarrel about {cause=cause}. {cause.said}.
But {one_day_small}, both of them wanted {cause=cause}. {cause.said}.

@rule one_day_small
one day
one rainy morning
one hot afternoon
last week

@rule quarrel_alone
{hero} stamped home and tried to play alone, but {cause.alone}.
"I do not need anybody," said {hero}. But {cause.alone}.

@rule quarrel_wish
{^hero.they} wished they were friends again.
"I wish we had never quarreled," [sighed|whispered|sniffed] {hero}.
How {hero} wished that {pal} would come back!

@rule quarrel_tip
"Somebody has to say sorry first," said the {helper}. "It may as well be you."
"Which do you love more," asked the {helper}, "{cause} or {pal}?"
"Sorry is a small word," said the {helper}, "but it can cross any river."

@rule quarrel_go
{hero} ran to {pal}'s house as fast as {hero.they} could. "I am sorry," {hero.they} said.
{hero} knocked on {pal}'s door. "I am sorry," {hero.they} said in a small voice.
Halfway to {pal}'s house, they bumped into each other. "I am sorry," they said at the same time.

@rule quarrel_peace
"I am sorry too," said {pal}, and {cause.peace}.
{pal} hugged {hero.them} for a long time. Then {cause.peace}.
They both began to laugh, and {cause.peace}.

@rule quarrel_end
After that, {hero} and {pal} sometimes disagreed, but they never forgot to say sorry.
{hero} had {hero.their} friend back, and that was better than winning.
{hero} and {pal} were friends again, and {cause} made them laugh whenever they thought of it.

@table cause: about | said | alone | peace
the last cookie | "It is mine," said one, and "No, mine," said the other
  | the cookie tasted like sand | they baked a whole new batch
the red swing | They pulled so hard that the rope came down | half a swing is no fun at all
  | they tied the rope up again and took turns
the best hiding place | "I found it first," they both shouted | nobody came to look for {hero.them}
  | they squeezed into it together and giggled
the biggest pumpkin | They tugged until both sat in the mud
  | a pumpkin is not much of a talker | they made it into a lantern with two faces
a blue feather | They pulled until it bent in the middle
  | the feather could not play catch | they put it in a hat that they wore on alternate days
the front seat of the wagon | Neither of them would move | nobody was there to pull the wagon
  | one pulled and one rode, and then they traded
the story they were writing | One wanted a dragon, and the other wanted a queen
  | the story did not know how to go on | they wrote about a dragon who was a queen
a silver button | They shouted so loudly that the birds flew away
  | the button just lay there | they buried it as pirate treasure and drew a map
the rules of the game | "You cheated," they both said | a game for one always ends the same way
  | they made up new rules that were much sillier
the warm spot by the fire | They pushed until the milk spilled | even the fire felt cold
  | they sat there side by side under one blanket
the tallest sunflower | They pulled until the stem snapped | one petal after the other fell off
  | they planted two seeds, side by side
a place in the play | "I want to be the lion," they both roared
  | a lion needs somebody to be afraid of it | they became a lion with four legs
the sled | They rocked it until it rolled away empty | the snow was only cold and white
  | they rode down together, one steering and one screaming
a wishbone | It flew out of their hands and into the soup | the wish would not come
  | they wished for the same thing at the same time
the name of the kitten | One said Snowy, and the other said Thunder
  | the kitten answered to nothing | they called it Snowy Thunder, and it came
the window seat on the train | They squeezed until neither could sit
  | the fields went by, and nobody pointed | they traded seats at every station
the last page of the comic book | It tore right down the middle
  | half a page makes no sense | they glued it, and read the ending out loud

# ---- somebody small is lost ---------------------------------------------------------------------
@rule plot_rescue
// {rescue_find} {rescue_wish} // {rescue_try} {pet.grief} // {meet} {talk} {rescue_tip} //
  {baby.win}. {pet.glad} // {rescue_end} {bedtime}

@rule rescue_find
{one_day}, {hero} heard a tiny cry. It was {a baby=baby} that {baby.plight}.
{one_day}, {hero} found {a baby=baby} that {baby.plight}.
{one_day}, on the way home, {hero} almost stepped on {a baby=baby} that {baby.plight}.

@rule rescue_wish
"Do not be afraid," said {hero}. "I will get you home." That was {hero.their} only wish.
"Poor little thing," said {hero}, and {hero.they} wished to bring it home to its mother.
{hero} wished to see it safe with its mother.

@rule rescue_try
First {hero.they} {baby.try1}. Then {hero.they} {baby.try2}.
{^hero.they} {baby.try1}. After that, {hero.they} {baby.try2}.

@rule rescue_tip
"I know its mother," said the {helper}. "{baby.tip}."
"Let me think," said the {helper}. "Ah! {baby.tip}."
"Two heads are better than one," said the {helper}. "{baby.tip}."

@rule rescue_end
Every [spring|year] after that, {baby.after}.
{hero} waved until they were out of sight. And one fine day, {baby.after}.
The little {baby} was home, just as {hero} had wished. And sometimes {baby.after}.

@table baby: name | plight | try1 | try2 | tip | win | after
baby bird | had fallen out of its nest | climbed up, but the branch was too thin
  | stood on a barrel, but it was too low | Put it in your hat and lift it with a long pole
  | Up went the hat, hop went the bird, and its mother covered it with her wings
  | a bird sang a thank-you song outside {hero.their} window
duckling | had lost its brothers and sisters | quacked loudly, but no duck answered
  | put it in a bucket, but it cried | Walk along the water and let it call for itself
  | The duckling peeped, a mother duck quacked, and six small heads turned around
  | seven ducks came to the door to say hello
kitten | was stuck in a tree | called and called, but it only held on tighter
  | shook the tree, and it climbed up higher | Lean a board on the trunk and put a bit of fish at
  the bottom
  | Down the board came the kitten, one paw at a time, right to its mother
  | a cat left a feather on {hero.their} doorstep
lamb | was caught in the brambles | pulled, but the thorns held on
  | pushed, and got scratched from top to toe | Hold the branches back with a stick and turn it
  gently around
  | The lamb slipped out like a letter from an envelope and ran bleating to its mother
  | the sheep gave {hero.them} the softest wool for a sweater
baby turtle | was lying on its back | turned it over, but it ran the wrong way
  | carried it, but it pulled in its head and would not move | Draw a line in the sand for it to
  follow down to the water
  | The little turtle followed the line all the way to the waves, where its mother was waiting
  | a turtle lifted one flipper out of the water to wave
bear cub | had a paw stuck in a jar | pulled the jar, but it did not budge
  | tapped the jar, but it did not crack | Rub a little butter on the paw, and it will slide out
  | Pop, went the jar, and the cub ran into the big warm arms of its mother
  | a pot of honey appeared on the doorstep
baby hedgehog | had wandered into the road | tried to pick it up, but ouch
  | tried to talk to it, but it rolled into a ball | Roll it onto a soft leaf and carry the leaf
  | Under the hedge its mother was waiting with all the others, and the ball opened up
  | a row of tiny footprints led to the door
fawn | could not find its way | led it left, but there was only a wall
  | led it right, but there was only a ditch | Follow the smell of clover, for its mother will be
  there
  | In the clover stood the mother deer, and the fawn ran to her on wobbly legs
  | two deer stood at the edge of the garden and bowed
piglet | had fallen into a ditch | reached down, but {hero.their} arms were too short
  | threw a rope, but a piglet cannot hold a rope | Lay down a plank, and it will walk out by itself
  | Up the plank it trotted, and its mother gave a grunt of joy
  | a piglet followed {hero} to school
baby owl | had flown too far in the daylight | told it where to go, but it could not see
  | sang to it, but it only blinked | Wait until dark, and then its mother will call
  | When the moon rose, a soft hoot came from the trees, and the little owl flew straight home
  | an owl said good night from the roof
baby elephant | had run away from the circus | offered it a peanut, but it wanted its mother
  | gave it a push, but it was much too heavy | Play a march on a comb, and it will walk behind you
  | Left, right, left, right, they marched to the big tent, and there was its mother
  | an elephant sprayed {hero.them} with water, just for fun
little dragon | had lost its spark | gave it a pepper, but it only sneezed
  | gave it some hot soup, but it only burped | Tickle it under the chin until it laughs
  | Whoosh, went a small warm flame, and its mother saw the light and flew down
  | a dragon lit all the candles on {hero.their} birthday cake
cygnet | was tangled in a fishing line | pulled the line, but it grew tighter
  | bit the line, but it was too tough | Cover its eyes with a cloth, and cut the line with a shell
  | The line fell away, and two white swans came sailing to fetch their child
  | three swans flew over the house in a row
baby seal | had been left behind by the tide | carried water in cupped hands, but it ran out
  | pushed it, but it only looked up | Wet a blanket, and drag it down to the waves like a sled
  | Splash, went the seal, and its mother barked from the rocks
  | a wet brown head popped up beside the boat
leveret | was shivering in an open field | gave it a carrot, but it was too small to eat
  | wrapped it in a scarf, but it wriggled out | Leave it where it lies and hide, for its mother
  comes at dusk
  | At dusk a long-eared mother came bounding over the furrows
  | two hares boxed in the garden by moonlight
baby squirrel | had slipped down a drainpipe | shook the pipe, but it only squeaked
  | called into the pipe, but the echo scared it | Let down a knotted rag, and it will climb by itself
  | Knot by knot it came up, and its mother snatched it by the scruff
  | a row of nuts lay on the windowsill
puppy | was sitting in a basket that drifted down the stream | threw a stone, and the basket rocked
  | ran along the bank, but the stream was faster | Wait at the next bridge with a rake
  | The rake caught the handle, and up on the road its mother barked for joy
  | a dog walked {hero.them} to school
baby mole | had come up on the hard road | dug with both hands, but the road was stone
  | set it down, but it ran in a ring | Carry it to the nearest molehill, and drum like rain
  | The earth began to move, and a pink nose came up to fetch it
  | a fresh molehill stood there like a bouquet
)";

}  // namespace mr::story
